"""`python -m mqcore` is the program `mqcore`."""

from mqcore.cli import main

if __name__ == "__main__":
    main()
