"""What to expect before anybody is asked: methods answered by arithmetic, and advice from that."""
