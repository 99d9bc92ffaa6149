"""`python -m busbar`: the same as the console script `busbar`."""

from busbar.cli import main

if __name__ == "__main__":
    main()
