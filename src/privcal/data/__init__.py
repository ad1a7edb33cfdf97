"""Files and tables to scores, by a model file too; the one ledger of a file, and its owner's desk."""
