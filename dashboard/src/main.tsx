/** The frame around all pages: navigation, the state of the connection, the login, the keyboard. */

import { render } from "preact";
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

import { access, learnAccess, logOut } from "./access";
import { token } from "./api";
import { clock } from "./format";
import { attention, connection, follow, heardAt, isFrozen, trouble } from "./live";
import { ClusterPage } from "./pages/cluster";
import { ConnectionsPage } from "./pages/connections";
import { JobsPage } from "./pages/jobs";
import { LimitsPage } from "./pages/limits";
import { OverviewPage } from "./pages/overview";
import { QueuePage } from "./pages/queue";
import { QueuesPage } from "./pages/queues";
import { RoutingPage } from "./pages/routing";
import { SchedulesPage } from "./pages/schedules";
import { SystemPage } from "./pages/system";
import { TracePage } from "./pages/trace";
import { UsersPage } from "./pages/users";
import { Badge } from "./parts";
import { path } from "./route";
import "./style.css";

interface Page {
  path: string;
  title: string;
  /** The key that opens it after `g`. */
  key: string;
  page: ComponentType;
}

const PAGES: Page[] = [
  { path: "/", title: "Overview", key: "o", page: OverviewPage },
  { path: "/queues", title: "Queues", key: "q", page: QueuesPage },
  { path: "/connections", title: "Connections", key: "c", page: ConnectionsPage },
  { path: "/routing", title: "Routing", key: "r", page: RoutingPage },
  { path: "/trace", title: "Trace", key: "t", page: TracePage },
  { path: "/jobs", title: "Jobs", key: "j", page: JobsPage },
  { path: "/schedules", title: "Schedules", key: "s", page: SchedulesPage },
  { path: "/limits", title: "Limits", key: "l", page: LimitsPage },
  { path: "/users", title: "Users", key: "u", page: UsersPage },
  { path: "/system", title: "System", key: "y", page: SystemPage },
];

/** Shown if the broker belongs to a cluster. */
const CLUSTER: Page = { path: "/cluster", title: "Cluster", key: "n", page: ClusterPage };

function pages(): Page[] {
  return access.value?.cluster ? [...PAGES, CLUSTER] : PAGES;
}

function App() {
  const found = pages().find((page) => page.path === path.value);
  const Shown = path.value === "/queue" ? QueuePage : (found?.page ?? OverviewPage);
  const [helps, setHelps] = useState(false);
  const isLive = connection.value === "live";
  useEffect(() => {
    if (isLive) void learnAccess();
  }, [isLive]);
  useEffect(() => listenToKeys(() => setHelps((shown) => !shown)), []);
  useEffect(() => {
    document.title = `mqcore – ${found?.title ?? "Queue"}`;
  }, [found?.title]);
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => skip(event)}>
        skip to the content
      </a>
      <header>
        <h1>mqcore</h1>
        <nav aria-label="pages">
          {pages().map((page) => (
            <a key={page.path} href={`#${page.path}`} aria-current={page === found ? "page" : undefined}>
              {page.title}
            </a>
          ))}
        </nav>
        <User />
        <Health />
      </header>
      <main id="content" tabIndex={-1} class={connection.value === "stale" ? "stale" : ""}>
        {connection.value === "denied" ? <Login /> : <Shown />}
      </main>
      {helps && <Help close={() => setHelps(false)} />}
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

/** Who is logged in. */
function User() {
  const user = access.value?.user;
  if (!user) return null;
  return (
    <div class="user">
      <span>
        {user}
        {access.value?.administers.length ? "" : " (may only look)"}
      </span>
      <button type="button" class="quiet" onClick={logOut}>
        log out
      </button>
    </div>
  );
}

/** The health of the broker, and whether the screen is current. */
function Health() {
  const status = attention.value?.status ?? "starting";
  const severity = status === "critical" || status === "warning" ? status : status === "healthy" ? "healthy" : "starting";
  return (
    <div class="health" role="status">
      <Badge severity={severity}>{status}</Badge>
      {connection.value === "stale" && (
        <span class="trouble">
          {trouble.value || "reconnecting"}
          {heardAt.value > 0 ? `; figures of ${clock(heardAt.value)}` : ""}
        </span>
      )}
      <button
        type="button"
        aria-pressed={isFrozen.value}
        onClick={() => {
          isFrozen.value = !isFrozen.value;
        }}
      >
        {isFrozen.value ? "frozen" : "live"}
      </button>
    </div>
  );
}

/** Asks for a token. It stays in this tab. */
function Login() {
  const [text, setText] = useState("");
  return (
    <form
      class="login"
      onSubmit={(event) => {
        event.preventDefault();
        token.set(text.trim());
        connection.value = "starting";
        follow("topic=overview");
      }}
    >
      <h2>This broker has users</h2>
      <p>{trouble.value}</p>
      <label>
        Token with the right to inspect or to administer
        <input type="password" autocomplete="off" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <button type="submit" disabled={text.trim() === ""}>
        show the dashboard
      </button>
      <p class="empty">
        Create one: <code>mqcore token create NAME --allow administer</code>
      </p>
    </form>
  );
}

function keys(): [string, string][] {
  return [
    ...pages().map((page): [string, string] => [`g ${page.key}`, `open ${page.title}`]),
    ["/", "filter the list, or enter an id"],
    ["space", "freeze the screen"],
    ["?", "show these keys"],
  ];
}

function Help({ close }: { close: () => void }) {
  return (
    <dialog open class="help" aria-label="keys">
      <table>
        <caption>Keys</caption>
        <tbody>
          {keys().map(([key, what]) => (
            <tr key={key}>
              <th scope="row">
                <kbd>{key}</kbd>
              </th>
              <td>{what}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <button type="button" autofocus onClick={close}>
        close
      </button>
    </dialog>
  );
}

/** Time in which the second key of `g q` must follow. */
const SEQUENCE_MS = 1_000;

function listenToKeys(toggleHelp: () => void): () => void {
  let goesSince = 0;
  const press = (event: KeyboardEvent) => {
    const inField = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
    if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = pages().find((page) => page.key === event.key);
    if (target && Date.now() - goesSince < SEQUENCE_MS) {
      location.hash = target.path;
      goesSince = 0;
      return;
    }
    const onButton = event.target instanceof HTMLElement && event.target.matches("button, a, summary");
    if (event.key === "g") goesSince = Date.now();
    else if (event.key === "?") toggleHelp();
    else if (event.key === " " && !onButton) isFrozen.value = !isFrozen.value;
    else if (event.key === "/") document.querySelector<HTMLInputElement>("[data-filter]")?.focus();
    else return;
    event.preventDefault();
  };
  addEventListener("keydown", press);
  return () => removeEventListener("keydown", press);
}

const root = document.getElementById("app");
if (root) render(<App />, root);
