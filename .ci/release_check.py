"""Build the distributions, check them, and try the wheel in a fresh environment. Run by `make release-check`."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
BIN = Path(sys.executable).parent
NEEDED = (
    "Name",
    "Version",
    "Summary",
    "Author",
    "Keywords",
    "License-Expression",
    "Requires-Python",
    "Project-URL",
)


def run(*command: object, **options: object) -> None:
    """Run a program, or end with its exit code."""
    print("$", *command, flush=True)
    done = subprocess.run([str(part) for part in command], cwd=ROOT, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(done.returncode)


def check_metadata(wheel: Path) -> None:
    """End with a message if the wheel lacks metadata, types or a section in the changelog."""
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (file,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(content.read(file))
    if missing := [field for field in NEEDED if not metadata.get(field)]:
        sys.exit(f"{wheel.name} has no {', '.join(missing)}: see [project] of pyproject.toml")
    if "parketto/py.typed" not in names:
        sys.exit(f"{wheel.name} has no parketto/py.typed: type checkers would ignore its types")
    expected = {"parketto", "parketto_start", "pyspark_parketto", file.split("/")[0]}
    if others := sorted({name.split("/")[0] for name in names} - expected):
        sys.exit(f"{wheel.name} contains more than its packages: {', '.join(others)}")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[(?:Unreleased|{re.escape(metadata['Version'])})\]", changes, re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no section for {metadata['Version']}")
    if "## [Unreleased]\n\n## [" not in changes:
        print("note: changes are listed under Unreleased; a release names its version")
    if placeholders := [url for url in metadata.get_all("Project-URL", []) if ".example" in url]:
        print(f"note: addresses to replace before an upload: {'; '.join(placeholders)}")


def main() -> None:
    """All checks; the first failure ends the program."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(BIN / "uv", "build", "--quiet", "--out-dir", DIST)
    (wheel,) = DIST.glob("*.whl")
    run(BIN / "twine", "check", "--strict", *sorted(DIST.glob("parketto-*")))
    check_metadata(wheel)
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder, "venv")
        run(sys.executable, "-m", "venv", "--without-pip", fresh)
        python = fresh / "bin" / "python"
        pins = ROOT / "constraints.txt"
        run(BIN / "uv", "pip", "install", "--quiet", "--python", python, "--constraints", pins, wheel)
        shutil.copy(ROOT / ".ci" / "smoke.py", folder)
        run(python, "-I", Path(folder, "smoke.py"))
    print("ready to upload:", *(path.name for path in sorted(DIST.glob("parketto-*"))))


if __name__ == "__main__":
    main()
