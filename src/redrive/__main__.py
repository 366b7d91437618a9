"""Entry point of `python -m redrive`: the `redrive` command."""

from redrive.cli import main

if __name__ == "__main__":
    main(prog_name="redrive")
