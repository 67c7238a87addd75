// BullMQ's rate on no-op jobs: node bullmq.mjs SOCKET JOBS. Measured from the first start of a handler to the last.
import { Queue, Worker } from "bullmq";

const [path, count] = [process.argv[2], Number(process.argv[3])];
const connection = { path, maxRetriesPerRequest: null };
const options = { removeOnComplete: true };
const queue = new Queue("bench", { connection });
for (let start = 0; start < count; start += 1000) {
  const jobs = Array.from({ length: Math.min(1000, count - start) }, (_, n) => ({ name: "noop", data: n, opts: options }));
  await queue.addBulk(jobs);
}
let first = 0;
let started = 0;
await new Promise((resolve) => {
  new Worker(
    "bench",
    async () => {
      first ||= performance.now();
      started += 1;
      if (started === count) {
        console.log((count - 1) / ((performance.now() - first) / 1000));
        resolve();
      }
    },
    { connection, concurrency: 100 },
  );
});
process.exit(0);
