"""The aggregator of the fleet, as `crossrank serve` runs it, with less patience for ranks that are gone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from aggregator.live.members import Patience
from aggregator.run import ServeOptions, serve

if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    run_dir, bind = Path(settings.pop("run_dir")), tuple(settings.pop("bind"))
    sys.exit(
        serve(ServeOptions(run_dir=run_dir, bind=bind, patience=Patience(suspect_seconds=0.5), **settings))
    )
