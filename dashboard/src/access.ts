/** What the user of this tab may do. The broker checks each request anyway; the page only offers nothing else. */

import { signal } from "@preact/signals";

import { ask, token } from "./api";
import type { Access } from "./api";

export const access = signal<Access | null>(null);

/** Asks the broker, once for each token. */
export async function learnAccess(): Promise<void> {
  try {
    access.value = await ask<Access>("/access");
  } catch {
    access.value = null;
  }
}

/** Whether the user may administer a part of the admin side, such as `queues`. */
export function mayAdminister(part: string): boolean {
  return access.value?.administers.includes(part) === true;
}

/** Whether it is known that the user may not administer a part. */
export function mayNotAdminister(part: string): boolean {
  return access.value?.administers.includes(part) === false;
}

/** Forgets the token, so that the page asks for another one. */
export function logOut(): void {
  token.clear();
  location.reload();
}
