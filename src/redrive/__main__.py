"""`python -m redrive` is the `redrive` command."""

from redrive.cli import main

if __name__ == "__main__":
    main(prog_name="redrive")
