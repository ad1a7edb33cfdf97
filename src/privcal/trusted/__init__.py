"""A question and rows to an answer, and nothing else: an auditor reads this room, in the order of READING.md.

It imports NumPy, OpenDP and the standard library, and nothing of ours but itself.
"""
