"""Sample events as JSON files, with late, repeated, corrected and broken ones, and what must become of them.

`python examples/sample_events.py DIR` puts the first files into a folder; run again, it adds further ones.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = ["view", "cart", "buy"]
CUSTOMERS = 2_000
FIRST_DAY = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
Event = dict[str, Any]


@dataclass
class Feed:
    """A producer that delivers at least once, in no particular order.

    Attributes:
        delivered: How often each version of each event was delivered.
        latest: The last version of each event, by id.
    """

    seed: int = 1
    delivered: Counter[tuple[int, int]] = field(default_factory=Counter)
    latest: dict[int, Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def events(self, count: int, days: list[int]) -> list[Event]:
        """New events of some days, in the order of time."""
        first = len(self.latest)
        seconds = sorted(self._random.choice(days) * 86_400 + self._random.random() * 86_400 for _ in range(count))
        made = [self._event(first + number, second) for number, second in enumerate(seconds)]
        self.latest |= {event["id"]: event for event in made}
        return made

    def _event(self, number: int, second: float) -> Event:
        at = FIRST_DAY + dt.timedelta(seconds=int(second))
        return {
            "id": number,
            "version": 1,
            "at": at.isoformat(),
            "customer": self._random.randrange(CUSTOMERS),
            "kind": self._random.choice(KINDS),
            "amount": self._random.randrange(100, 100_000) / 100,
        }

    def corrections(self, count: int) -> list[Event]:
        """Higher versions of events, with another amount."""
        made = []
        for number in self._random.sample(sorted(self.latest), count):
            event = self.latest[number]
            corrected = {**event, "version": event["version"] + 1, "amount": round(event["amount"] + 1, 2)}
            self.latest[number] = corrected
            made.append(corrected)
        return made

    def repeats(self, events: list[Event], count: int) -> list[Event]:
        """Events that are delivered again as they were."""
        return self._random.sample(events, count)

    def land(self, folder: Path, events: list[Event], files: int, *, broken: int = 0) -> int:
        """Write events as JSON lines, with some lines that are none; return the bytes.

        A file appears in the folder when it is complete: a stream must not read half of one.
        """
        self._random.shuffle(events)
        folder.mkdir(parents=True, exist_ok=True)
        first, size = len(list(folder.glob("*.json"))), 0
        for number in range(files):
            part = events[number::files]
            lines = [json.dumps(event) for event in part] + ['{"id": 7, "at": "20'] * (broken // files)
            text = "\n".join(lines) + "\n"
            hidden = folder / f".{first + number:05d}.json"
            hidden.write_text(text)
            hidden.rename(folder / hidden.name[1:])
            size += len(text)
        self.delivered.update((event["id"], event["version"]) for event in events)
        return size

    def totals(self) -> dict[tuple[str, str], tuple[int, int]]:
        """The number of events and their amount in cents, by day and kind."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for event in self.latest.values():
            count, cents = found.get(key := (event["at"][:10], event["kind"]), (0, 0))
            found[key] = count + 1, cents + round(event["amount"] * 100)
        return found


def main(folder: Path) -> None:
    """Land events of three days; if there are files already, later ones and some that arrive late or again."""
    feed = Feed()
    events = feed.events(5_000, [0, 1, 2])
    if any(folder.glob("*.json")):
        events = feed.events(2_000, [1, 2, 3]) + feed.corrections(200) + feed.repeats(events, 300)
    size = feed.land(folder, events, 2, broken=4)
    print(f"{len(events):,} events ({size:,} bytes) landed in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
