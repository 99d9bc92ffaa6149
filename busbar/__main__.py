"""`python -m busbar`: the same as the console script `busbar`."""

from busbar.cli.main import main

if __name__ == "__main__":
    main()
