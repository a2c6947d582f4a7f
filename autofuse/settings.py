"""What the environment decides, read once into one frozen object. Nothing else of autofuse reads these variables."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autofuse.errors import UsageError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True)
class Settings:
    """cache_dir: compiled kernels ($AUTOFUSE_CACHE_DIR). store_dir: the plan store ($AUTOFUSE_STORE).
    log_level: of the `autofuse` loggers ($AUTOFUSE_LOG). recordings: folder of recorded times, or "none"
    ($AUTOFUSE_RECORDINGS); None for those that come with autofuse."""

    cache_dir: Path
    store_dir: Path
    log_level: str = "WARNING"
    recordings: Path | None = None

    @staticmethod
    def read(environment: Mapping[str, str]) -> Settings:
        """Raises UsageError when a variable holds something it cannot."""
        from platformdirs import user_cache_path, user_data_path

        level = environment.get("AUTOFUSE_LOG", "WARNING").upper()
        if level not in LEVELS:
            raise UsageError(f"AUTOFUSE_LOG={level}: expected one of {', '.join(LEVELS)}")
        cache_dir = environment.get("AUTOFUSE_CACHE_DIR")
        store_dir = environment.get("AUTOFUSE_STORE")
        recordings = environment.get("AUTOFUSE_RECORDINGS")
        return Settings(
            cache_dir=Path(cache_dir).expanduser() if cache_dir else user_cache_path("autofuse"),
            store_dir=Path(store_dir).expanduser() if store_dir else user_data_path("autofuse"),
            log_level=level,
            recordings=Path(recordings).expanduser() if recordings else None,
        )


@cache
def settings() -> Settings:
    """The process's settings; `settings.cache_clear()` reads the environment anew (tests).

    The first call also sets the level of the `autofuse` logger, unless the program has set one already.
    """
    found = Settings.read(os.environ)
    logger = logging.getLogger("autofuse")
    if logger.level == logging.NOTSET and "AUTOFUSE_LOG" in os.environ:
        logger.setLevel(found.log_level)
    return found
