// BullMQ's rate on no-op jobs: node bullmq.mjs KIND SOCKET JOBS. KIND is "drain", measured from the first start of a handler
// to the last, or "enqueue", of one producer that awaits each.
import { Queue, Worker } from "bullmq";

const [kind, path, count] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const connection = { path, maxRetriesPerRequest: null };
const options = { removeOnComplete: true };
const queue = new Queue("bench", { connection });
if (kind === "enqueue") {
  for (let n = 0; n < 20; n += 1) await queue.add("noop", n, options);
  const start = performance.now();
  for (let n = 0; n < count; n += 1) await queue.add("noop", n, options);
  console.log(count / ((performance.now() - start) / 1000));
  process.exit(0);
}
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
