"""`python -m carrel.daemon`"""

from carrel.daemon.main import main

raise SystemExit(main())
