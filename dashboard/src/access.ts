/** What the user of this tab may do. The broker checks each request anyway; the page only offers nothing else. */

import { signal } from "@preact/signals";

import { ask, token } from "./api";

export interface Access {
  user: string | null;
  /** Whether there are no users yet, so that all may read and none may change. */
  open: boolean;
  changes: boolean;
  messages: boolean;
}

export const access = signal<Access | null>(null);

/** Asks the broker, once for each token. */
export async function learnAccess(): Promise<void> {
  try {
    access.value = await ask<Access>("/access");
  } catch {
    access.value = null;
  }
}

/** Forgets the token, so that the page asks for another one. */
export function logOut(): void {
  token.clear();
  location.reload();
}
