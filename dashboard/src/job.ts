/** Jobs as people read them. */

/** The function that a job calls; the text of the job if it has another form. */
export function callOf(job: string): string {
  try {
    const [, call] = JSON.parse(job) as [string, { path: string; callable: string }];
    return `${call.path}.${call.callable}`;
  } catch {
    return job.slice(0, 60);
  }
}
