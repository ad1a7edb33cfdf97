"""The command line: `privcal`, or `python -m privcal`."""

import sys


def main() -> None:
    """Run it; a server with NumPy alone has maps, but no commands, and is told so."""
    try:
        from privcal.cli.app import main as run
    except ModuleNotFoundError as error:
        if (error.name or "privcal").startswith("privcal"):
            raise
        sys.exit(f"error: commands need {error.name}, which is not installed; pip install privcal")
    run()


if __name__ == "__main__":
    main()
