/** Changes of users and tokens: creating tokens, revoking them, and removing users. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { mayAdminister } from "../access";
import { send } from "../api";
import type { NewToken, Token, User } from "../api";
import { Dialog, Table } from "../parts";
import type { Column } from "../parts";

/** What a dialog is about. */
type Chosen =
  | { what: "remove"; user: User }
  | { what: "revoke"; token: Token }
  | { what: "create" }
  | { what: "created"; created: NewToken };

interface CredentialTablesProps {
  users: User[];
  userColumns: Column<User>[];
  tokens: Token[];
  tokenColumns: Column<Token>[];
  refresh: () => void;
}

/** Tables of users and tokens, with what the user of the tab may change. */
export function CredentialTables({ users, userColumns, tokens, tokenColumns, refresh }: CredentialTablesProps) {
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const [report, setReport] = useState("");
  const close = () => setChosen(null);
  const change = async (work: () => Promise<string>) => {
    close();
    try {
      setReport(await work());
    } catch (error) {
      setReport(`nothing was changed: ${error instanceof Error ? error.message : String(error)}`);
    }
    refresh();
  };
  const remove = (user: User) =>
    change(async () => {
      await send("DELETE", `/users/${encodeURIComponent(user.name)}`);
      return `user ${user.name} is removed`;
    });
  const revoke = (token: Token) =>
    change(async () => {
      await send("DELETE", `/tokens/${encodeURIComponent(token.id)}`);
      return `token ${token.name} is revoked`;
    });
  const create = (wanted: NewTokenBody) =>
    change(async () => {
      const created = await send<NewToken>("POST", "/tokens", wanted);
      setChosen({ what: "created", created });
      return `token ${created.name} is created`;
    });
  const removing: Column<User> = {
    name: "remove",
    cell: (user) =>
      !user.configured && (
        <ChangeButton what={`remove ${user.name}`} choose={() => setChosen({ what: "remove", user })} />
      ),
  };
  const revoking: Column<Token> = {
    name: "revoke",
    cell: (token) =>
      !token.configured && (
        <ChangeButton what={`revoke ${token.name}`} choose={() => setChosen({ what: "revoke", token })} />
      ),
  };
  const [mayRemove, mayRevoke] = [mayAdminister("user changes"), mayAdminister("tokens")];
  return (
    <>
      {users.length > 0 && (
        <Table
          caption="users"
          columns={mayRemove ? [...userColumns, removing] : userColumns}
          rows={users}
          keyOf={(user) => user.name}
        />
      )}
      {tokens.length > 0 && (
        <Table
          caption="tokens"
          columns={mayRevoke ? [...tokenColumns, revoking] : tokenColumns}
          rows={tokens}
          keyOf={(token) => token.id}
        />
      )}
      {mayRevoke && (
        <div class="actions">
          <button type="button" onClick={() => setChosen({ what: "create" })}>
            create a token …
          </button>
        </div>
      )}
      <p role="status" class="report">
        {report}
      </p>
      {chosen?.what === "create" && <CreateDialog close={close} create={(wanted) => void create(wanted)} />}
      {chosen?.what === "created" && <CreatedDialog created={chosen.created} close={close} />}
      {chosen?.what === "remove" && (
        <ConfirmDialog
          title={`Remove user ${chosen.user.name}`}
          action="remove the user"
          close={close}
          act={() => void remove(chosen.user)}
        >
          The user cannot log in any more, and its {chosen.user.connections} connections are closed.
        </ConfirmDialog>
      )}
      {chosen?.what === "revoke" && (
        <ConfirmDialog
          title={`Revoke token ${chosen.token.name}`}
          action="revoke the token"
          close={close}
          act={() => void revoke(chosen.token)}
        >
          Token <code class="id">{chosen.token.id}</code> is not valid any more, and its{" "}
          {chosen.token.connections} connections are closed.
        </ConfirmDialog>
      )}
    </>
  );
}

function ChangeButton({ what, choose }: { what: string; choose: () => void }) {
  return (
    <button type="button" class="danger" aria-label={what} onClick={choose}>
      {what.split(" ")[0]} …
    </button>
  );
}

interface ConfirmDialogProps {
  title: string;
  /** What the button does. */
  action: string;
  close: () => void;
  act: () => void;
  children: ComponentChildren;
}

function ConfirmDialog({ title, action, close, act, children }: ConfirmDialogProps) {
  return (
    <Dialog title={title} close={close}>
      <p>{children}</p>
      <div class="actions">
        <button type="button" onClick={close}>
          keep it
        </button>
        <button type="button" class="danger" onClick={act}>
          {action}
        </button>
      </div>
    </Dialog>
  );
}

/** A request for a token. */
interface NewTokenBody {
  name: string;
  allow: string[];
  expires_ms: number | null;
}

const DAY_MS = 86_400_000;

function CreateDialog({ close, create }: { close: () => void; create: (wanted: NewTokenBody) => void }) {
  return (
    <Dialog title="Create a token" close={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          const form = new FormData(event.currentTarget);
          const lines = String(form.get("rules")).split("\n");
          const days = Number(form.get("days"));
          create({
            name: String(form.get("name")).trim(),
            allow: lines.map((line) => line.trim()).filter((line) => line !== ""),
            expires_ms: days > 0 ? Date.now() + days * DAY_MS : null,
          });
        }}
      >
        <label>
          Name
          <input name="name" required autocomplete="off" />
        </label>
        <label>
          Rules, one in each line
          <textarea name="rules" rows={3} placeholder="push,pull:orders/*" />
        </label>
        <label>
          Days until it expires; empty: never
          <input name="days" type="number" min="1" />
        </label>
        <div class="actions">
          <button type="button" onClick={close}>
            cancel
          </button>
          <button type="submit">create</button>
        </div>
      </form>
    </Dialog>
  );
}

function CreatedDialog({ created, close }: { created: NewToken; close: () => void }) {
  return (
    <Dialog title={`Token ${created.name}`} close={close}>
      <p>Save it now. The broker keeps its hash only, and cannot show it again.</p>
      <pre tabIndex={0}>{created.token}</pre>
      <div class="actions">
        <button type="button" onClick={close}>
          done
        </button>
      </div>
    </Dialog>
  );
}
