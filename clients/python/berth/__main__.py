"""``python -m berth exec``: run a command while holding slots."""

import sys

from .exec import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
