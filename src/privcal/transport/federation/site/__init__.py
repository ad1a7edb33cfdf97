"""What runs at a hospital: two processes of its own account, from this folder and `shared` alone.

`service` has the network (one outgoing connection) and reads no rows; its child `worker` has the
rows and the ledger, and no network. Nothing that arrives is unpacked, imported or run. The owner's
commands (`privcal site`) are in `setup`, `keys`, `roster` and `health`.
"""
