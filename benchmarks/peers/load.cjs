// One side of an offered load for graphile-worker and BullMQ, as benchmarks/load.py has it for Python:
// node load.cjs KIND URL NUMBER LIBRARY. All times are seconds of the clock that the processes of a machine share.

const { createInterface } = require("node:readline");
const { readFileSync } = require("node:fs");

const TIMER = 0.002; // seconds that a timer may be late without charging the queue
const GRACE = 2; // seconds after the last due time in which a call may still return
const PRODUCERS = 100;
const [kind, url, number, library] = process.argv.slice(2);

const now = () => Number(process.hrtime.bigint()) / 1e9;
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const mib = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) / 1024;

const drivers = {
  // The settings of its performance page.
  "graphile-worker"() {
    const { Logger, makeWorkerUtils, run } = require("graphile-worker");
    const logger = new Logger(() => (level, message) => level === "error" && console.error(message));
    const preset = {
      worker: {
        connectionString: url, concurrentJobs: 24, maxPoolSize: 25,
        localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
      },
    };
    return {
      install: async () => {
        const utils = await makeWorkerUtils({ preset, logger });
        await utils.migrate();
        await utils.release();
      },
      producing: async () => {
        const utils = await makeWorkerUtils({ preset, logger });
        return (stamp) => utils.addJob("wait", { stamp });
      },
      working: async (started, settled) => {
        const wait = async ({ stamp }) => started(stamp);
        const runner = await run({ preset, logger, noHandleSignals: true, taskList: { wait } });
        runner.events.on("job:complete", ({ job }) => settled(job.payload.stamp));
      },
    };
  },
  bullmq() {
    const { Queue, Worker } = require("bullmq");
    const connection = { path: url, maxRetriesPerRequest: null };
    return {
      install: async () => {},
      producing: async () => {
        const queue = new Queue("bench", { connection });
        return (stamp) => queue.add("wait", stamp, { removeOnComplete: true });
      },
      working: async (started, settled) => {
        const worker = new Worker("bench", async (job) => started(job.data), { connection, concurrency: 100 });
        worker.on("completed", (job) => settled(job.data));
      },
    };
  },
};

const waiting = [];
const lines = [];
createInterface({ input: process.stdin })
  .on("line", (line) => (waiting.length ? waiting.shift()(line) : lines.push(line)))
  .on("close", () => (waiting.length ? waiting.shift()("") : lines.push("")));
const line = async () => {
  const text = lines.length ? lines.shift() : await new Promise((resolve) => waiting.push(resolve));
  return text.split(" ").filter(Boolean).map(Number);
};

const percentile = (values, percent) => {
  const ordered = values.toSorted((one, other) => one - other);
  return ordered[Math.max(Math.ceil((ordered.length * percent) / 100) - 1, 0)];
};

async function work(driver) {
  await driver.install();
  const started = [];
  const settled = [];
  await driver.working((stamp) => started.push([stamp, now()]), (stamp) => settled.push([stamp, now()]));
  console.log("ready");
  const [end] = await line();
  while (now() < end && settled.length < Number(number)) await pause(0.02);
  return { started, settled, "worker-mib": mib() };
}

async function produce(driver) {
  const put = await driver.producing();
  console.log("ready");
  const took = [];
  const call = async (stamp) => {
    await put(stamp);
    took.push(now() - stamp);
  };
  const calls = [];
  for (const due of await line()) {
    if (due > now()) await pause(due - now());
    const late = now();
    calls.push(call(late - due <= TIMER ? late : due));
  }
  await Promise.race([Promise.all(calls), pause(GRACE)]);
  while (took.length < calls.length) took.push(1e9); // JSON has no infinity
  return { "enqueue-p50": percentile(took, 50), "enqueue-p99": percentile(took, 99), "producer-mib": mib() };
}

async function producers(driver) {
  await driver.install();
  const put = await driver.producing();
  await put(0);
  const took = [];
  const begin = now();
  const producer = async () => {
    for (let start = now(); start < begin + Number(number); start = now()) {
      await put(start);
      took.push(now() - start);
    }
  };
  await Promise.all(Array.from({ length: PRODUCERS }, producer));
  return { rate: took.length / (now() - begin), p50: percentile(took, 50), p99: percentile(took, 99) };
}

async function main() {
  const answer = await { work, produce, producers }[kind](drivers[library]());
  process.stdout.write(`${JSON.stringify(answer)}\n`, () => process.exit(0));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
