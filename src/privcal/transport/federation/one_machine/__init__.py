"""A whole federation on one machine, to try things with: `privcal federation up` and `down`.

It starts the same processes that run elsewhere (`shared.process`), each in its own folder. No
participant's process imports it.
"""
