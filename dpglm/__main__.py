"""``python -m dpglm``."""

import sys

from dpglm.study.cli import main

if __name__ == "__main__":
    sys.exit(main())
