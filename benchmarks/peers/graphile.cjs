// graphile-worker with batching, set as on its performance page: node graphile.cjs URL JOBS SIZE.
// SIZE is the size of its local queue: how many jobs it fetches at once.
// Prints the rate from the first start of a handler to the last, as JSON.

const { performance } = require("node:perf_hooks");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");

const [connectionString, count, size] = process.argv.slice(2);
const jobs = Number(count);
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));

const preset = {
  worker: {
    connectionString,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: Number(size) },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};

async function fill() {
  const utils = await makeWorkerUtils({ preset, logger });
  await utils.migrate();
  for (let start = 0; start < jobs; start += 1000) {
    const some = Math.min(1000, jobs - start);
    await utils.addJobs(
      Array.from({ length: some }, (_, n) => ({ identifier: "noop", payload: { number: start + n } })),
    );
  }
  await utils.release();
}

async function drain() {
  const starts = new Float64Array(jobs);
  let started = 0;
  let allStarted;
  const done = new Promise((resolve) => (allStarted = resolve));
  const noop = async () => {
    starts[started++] = performance.now();
    if (started === jobs) allStarted();
  };
  const runner = await run({ preset, logger, noHandleSignals: true, taskList: { noop } });
  await done;
  await runner.stop();
  return ((jobs - 1) * 1000) / (starts[jobs - 1] - starts[0]);
}

fill()
  .then(drain)
  .then((rate) => console.log(JSON.stringify({ rate })))
  .catch((error) => {
    console.error(error);
    process.exitCode = 1;
  });
