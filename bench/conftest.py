"""The bench's modules import one another by name, as scripts in one directory do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
