"""A campaign by mail: its questions go out as a file, and each owner sends a file back.

Nobody runs a server, and nothing listens. A calibrator writes the questions of a round into one
file (`letters`), an owner looks at it and answers from their data (`answering`), and the usual
loop goes on from the files that came back (`post`). With a federation's kit the file holds
the same signed requests as over a network, and the answers are sealed and signed as there
(`signed`); a site may then answer unattended whatever appears in a folder (`watch`). Without one,
nothing but the base package is needed, and the asker's name is only a claim.
"""
