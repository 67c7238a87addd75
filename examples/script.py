"""Count the words of files, with a job for each: in parallel, and with retries.

The jobs are in a SQLite file. A second start runs those that an interrupted one has left.
"""

import argparse
import asyncio
from pathlib import Path

from dayjob import App, JobHandle, Retry, Worker

app = App("sqlite:///words.db")


@app.task(dedup=True, retry=Retry.fixed(attempts=3, delay=1))
def count(path: str) -> int:
    """Return the number of words. A plain function runs in a thread of the worker."""
    return len(Path(path).read_text(errors="replace").split())


async def main(files: list[Path]) -> None:
    handles: list[JobHandle[int]] = await count.aenqueue_many([(str(file.resolve()),) for file in files])
    async with Worker(app):
        counts = await asyncio.gather(*(handle.aresult() for handle in handles))
    for number, file in sorted(zip(counts, files, strict=True), reverse=True):
        print(f"{number:8,} {file}")
    print(f"{sum(counts):8,} words in {len(files)} files")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.script", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="default: the Markdown files of this folder")
    asyncio.run(main(parser.parse_args().files or sorted(Path.cwd().glob("*.md"))))
