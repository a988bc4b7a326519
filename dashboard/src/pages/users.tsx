/** Users and tokens: who may do what, and who is connected. */

import { useEffect } from "preact/hooks";

import { mayAdminister } from "../access";
import type { Audit, AuditLine, Restrictions, Token, User, Users } from "../api";
import { count, expiry, moment } from "../format";
import { follow } from "../live";
import { AnswerError, Badge, Figure, Table } from "../parts";
import type { Column } from "../parts";
import { useAnswer } from "../use_answer";
import { CredentialTables } from "./user_changes";

export function UsersPage() {
  useEffect(() => follow("topic=overview"), []);
  const answer = useAnswer<Users>("/users", 2_000);
  const { data } = answer;
  return (
    <section aria-labelledby="title">
      <h2 id="title">Users</h2>
      <AnswerError answer={answer} what="users and tokens" rule="administer:/users" />
      {data && <Totals users={data} />}
      {data && (data.open ? <Open /> : <Lists users={data} refresh={answer.refresh} />)}
      {data && !data.open && mayAdminister("audit") && <AuditLog />}
    </section>
  );
}

const AUDIT: Column<AuditLine>[] = [
  { name: "time", cell: (line) => moment(line.time_ms) },
  { name: "event", cell: (line) => line.event },
  {
    name: "verdict",
    cell: (line) => <Badge severity={line.verdict === "denied" ? "warning" : "healthy"}>{line.verdict}</Badge>,
  },
  { name: "who", cell: (line) => line.who ?? "–" },
  { name: "from", cell: (line) => line.address ?? line.client ?? "–" },
  { name: "action", cell: (line) => [line.action, line.resource].filter(Boolean).join(" ") || "–" },
  { name: "why", cell: (line) => line.why ?? "–" },
];

/** The latest lines of the audit log. */
function AuditLog() {
  const { data } = useAnswer<Audit>("/audit?limit=50", 2_000);
  if (!data) return null;
  return (
    <>
      <h3>Audit log</h3>
      {data.lines.length === 0 ? (
        <p class="empty">There are no lines since the start.</p>
      ) : (
        <Table
          caption="audit log"
          columns={AUDIT}
          rows={data.lines}
          keyOf={(line, index) => `${line.time_ms} ${index}`}
        />
      )}
    </>
  );
}

function Totals({ users }: { users: Users }) {
  return (
    <dl class="figures">
      <Figure name="users" value={count(users.users.length)} />
      <Figure name="tokens" value={count(users.tokens.length)} />
      <Figure name="logins since the start" value={count(users.logins)} />
      <Figure name="refused logins" value={count(users.logins_refused)} />
      <Figure name="denied actions" value={count(users.actions_denied)} />
    </dl>
  );
}

function Open() {
  return (
    <div class="empty">
      <p>
        There are neither users nor tokens: everyone who reaches a listener may do everything. Create one to change this:
      </p>
      <pre tabIndex={0}>mqcore token create NAME --allow administer --data-dir DIR</pre>
    </div>
  );
}

const SHARED: Column<User | Token>[] = [
  { name: "may", cell: ({ allow }) => <Rules rules={allow} /> },
  { name: "only for", cell: ({ restrict }) => conditions(restrict) || "–" },
  { name: "connections", isNumber: true, cell: ({ connections }) => count(connections) },
  { name: "from", cell: ({ configured }) => (configured ? "configuration" : "store") },
];

const USERS: Column<User>[] = [
  { name: "name", cell: ({ name }) => name },
  {
    name: "logs in with",
    cell: (user) => {
      const ways = [user.has_password && "password", user.certificate && `certificate ${user.certificate}`];
      return ways.filter(Boolean).join(" or ") || "nothing";
    },
  },
  ...SHARED,
];

const TOKENS: Column<Token>[] = [
  { name: "name", cell: ({ name }) => name },
  { name: "id", cell: ({ id }) => <code class="id">{id}</code> },
  { name: "expires", cell: ({ expires_ms: at }) => (at === null ? "never" : expiry((at - Date.now()) / 1_000)) },
  ...SHARED,
];

function Rules({ rules }: { rules: string[] }) {
  if (rules.length === 0) return <>nothing</>;
  return (
    <>
      {rules.map((rule) => (
        <code key={rule}>{rule} </code>
      ))}
    </>
  );
}

function conditions({ client_ids, client_names, client_types, addresses }: Restrictions): string {
  const kinds: [string, string[]][] = [
    ["id", client_ids],
    ["name", client_names],
    ["type", client_types],
    ["address", addresses],
  ];
  const used = kinds.filter(([, patterns]) => patterns.length > 0);
  return used.map(([kind, patterns]) => `${kind} ${patterns.join(" or ")}`).join("; ");
}

function Lists({ users, refresh }: { users: Users; refresh: () => void }) {
  return (
    <>
      <CredentialTables
        users={users.users}
        userColumns={USERS}
        tokens={users.tokens}
        tokenColumns={TOKENS}
        refresh={refresh}
      />
      {users.anonymous.length > 0 && (
        <p>
          Peers without credentials may: <Rules rules={users.anonymous} />
        </p>
      )}
      <p class="empty">
        <code>mqcore user</code> and <code>mqcore token</code> change them, too.
      </p>
    </>
  );
}
