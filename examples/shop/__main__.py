"""Run the shop: the site and a worker in one process."""

import argparse

import uvicorn

parser = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
parser.add_argument("--port", type=int, default=8000)
uvicorn.run("examples.shop.web:web", port=parser.parse_args().port)
