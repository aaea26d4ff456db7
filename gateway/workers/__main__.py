"""One worker, as its parent starts it: nothing for people to run."""

import sys

from gateway.workers.worker import main

if __name__ == "__main__":
    sys.exit(main())
