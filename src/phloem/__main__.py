"""`python -m phloem` is the `phloem` command."""

from phloem.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
