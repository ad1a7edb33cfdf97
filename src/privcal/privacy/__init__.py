"""What keeps a source's rows private: exact noise, a durable ledger, the owner's policy."""
