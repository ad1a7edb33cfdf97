"""What every participant runs: the protocol, certificates, and the gate in front of the network.

Nothing in here belongs to one party, has a process of its own, or imports a party's folder.
"""
