"""`python -m privcal`: the command line."""

from privcal.cli.app import main

if __name__ == "__main__":
    main()
