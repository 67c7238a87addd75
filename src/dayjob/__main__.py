"""``python -m dayjob``: the ``dayjob`` command."""

from dayjob.cli import main

if __name__ == "__main__":
    main(prog_name="dayjob")
