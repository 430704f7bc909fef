"""The command line."""

from benchmarks.suite import main

if __name__ == "__main__":
    main()
