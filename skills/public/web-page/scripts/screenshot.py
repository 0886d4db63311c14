"""Takes pictures of a page at the widths of a phone and a desktop: python3 screenshot.py page.html --out shots/."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell", "chrome-headless-shell")
SIZES = {"phone": (500, 900), "desktop": (1280, 900)}  # Chromium's windows are at least 500 wide
SECONDS = 90


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(
            f"no browser here ({', '.join(BROWSERS)}). Fix: install chromium, or rely on check_page.py", file=sys.stderr
        )
        return 3
    if not options.page.is_file():
        print(f"{options.page}: no such file", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    for name, (width, height) in SIZES.items():
        target = options.out / f"{options.page.stem}-{name}.png"
        with tempfile.TemporaryDirectory() as profile:
            command = [
                *(
                    browser,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--hide-scrollbars",
                ),
                *(f"--user-data-dir={profile}", f"--window-size={width},{height}", "--virtual-time-budget=5000"),
                *(f"--screenshot={target.resolve()}", options.page.resolve().as_uri()),
            ]
            try:
                process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            except subprocess.TimeoutExpired:
                print(f"{browser} did not answer in {SECONDS} seconds", file=sys.stderr)
                return 2
        if not target.is_file():
            print(f"{browser}: {process.stderr.strip()[-500:]}", file=sys.stderr)
            return 2
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
