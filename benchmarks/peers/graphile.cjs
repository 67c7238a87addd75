// graphile-worker with batching, set as on its performance page: node graphile.cjs URL JOBS SIZE.
// SIZE is the size of its local queue: how many jobs it fetches at once.
// Prints as JSON the rate from the first start of a handler until no job is left, and the rate of the enqueues.

const { performance } = require("node:perf_hooks");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Client } = require("pg");

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
  let second = 0;
  for (let start = 0; start < jobs; start += 1000) {
    const some = Math.min(1000, jobs - start);
    await utils.addJobs(
      Array.from({ length: some }, (_, n) => ({ identifier: "noop", payload: { number: start + n } })),
    );
    second ||= performance.now();
  }
  const fillRate = ((jobs - 1000) * 1000) / (performance.now() - second);
  await utils.release();
  return fillRate;
}

async function drain() {
  let first = 0;
  let started = 0;
  let allStarted;
  const done = new Promise((resolve) => (allStarted = resolve));
  const noop = async () => {
    first ||= performance.now();
    if (++started === jobs) allStarted();
  };
  const runner = await run({ preset, logger, noHandleSignals: true, taskList: { noop } });
  await done;
  const client = new Client({ connectionString });
  await client.connect();
  const left = "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs) AS some";
  while ((await client.query(left)).rows[0].some) await new Promise((resolve) => setTimeout(resolve, 2));
  const ended = performance.now();
  await client.end();
  await runner.stop();
  return (jobs * 1000) / (ended - first);
}

async function main() {
  const fillRate = await fill();
  console.log(JSON.stringify({ rate: await drain(), "fill-rate": fillRate }));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
