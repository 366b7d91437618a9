// Additions to the pages: dialogs, keyboard shortcuts, live updates. Without this script every page still works.

const texts = document.body.dataset;
const language = document.documentElement.lang;
const each = (selector, act, within = document) => within.querySelectorAll(selector).forEach(act);

// -- times: in the chosen time zone, with the exact time in a tooltip ----------------------------------------

// The browser's own variant of the page's language, because the order of day and month depends on it.
const locale = navigator.languages.find((name) => name.startsWith(`${language}-`)) ?? (language === "en" ? "en-GB" : language);
const by = (timeZone) => new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "long", timeZone });
const local = by(undefined), exact = document.documentElement.dataset.clock === "utc" ? by("UTC") : local;
const axis = (options) => new Intl.DateTimeFormat(locale, { ...options, timeZone: exact === local ? undefined : "UTC" });
const axes = { clock: axis({ hour: "2-digit", minute: "2-digit", hourCycle: "h23" }), day: axis({ day: "numeric", month: "short" }) };
const relative = new Intl.RelativeTimeFormat(locale, { style: "short", numeric: "always" });
const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function distance(seconds) {
  if (Math.abs(seconds) < 5) return texts.now;
  const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= size) ?? units[3];
  return relative.format(Math.trunc(seconds / size), unit);
}

function showTime(time) {
  const at = new Date(time.dateTime);
  if (isNaN(at)) return;
  const text = time.dataset.as === "exact" ? exact.format(at) : axes[time.dataset.as]?.format(at) ?? distance((at - Date.now()) / 1000);
  if (time.textContent !== text) time.textContent = text;
  time.title = `${local.format(at)}\n${time.dateTime.replace("T", " ").replace("Z", "")} UTC`;
}

// -- parts that need this script are hidden until it runs ----------------------------------------------------

function enliven(within = document) {
  each("time[datetime]", showTime, within);
  each("title[data-at]", (title) => { title.textContent = `${exact.format(new Date(title.dataset.at))}: ${title.dataset.text}`; }, within);
  each("[data-zone]", (zone) => { zone.textContent = axis({ timeZoneName: "short" }).formatToParts().find((part) => part.type === "timeZoneName").value; }, within);
  each("[data-copy]", (button) => { button.hidden = false; }, within);
  each("[data-scripted]", (part) => { part.hidden = false; }, within);
}

function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.classList.add("on");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => place.classList.remove("on"), 2500);
}

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    await navigator.clipboard.writeText(copy.dataset.copy);
    toast(texts.copied);
    return;
  }
  const all = event.target.closest("[data-all]");
  if (all) {
    each(all.dataset.all, (box) => { box.checked = all.checked; });
    count();
  }
  each("details.menu[open]", (menu) => { if (!menu.contains(event.target)) menu.open = false; });
});

// -- forms are sent once; a sheet becomes a dialog -----------------------------------------------------------

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-guard]")) return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "yes";
  setTimeout(() => each("button", (button) => { button.disabled = true; }, form));
});
addEventListener("pageshow", () => each("form[data-sent]", (form) => {
  delete form.dataset.sent;
  each("button", (button) => { button.disabled = false; }, form);
}));

function lift(act) {
  const sheet = act.querySelector(":scope > .sheet");
  const dialog = document.createElement("dialog");
  const title = sheet.querySelector("h3");
  title.id ||= `${act.id}-title`;
  dialog.setAttribute("aria-labelledby", title.id);
  const away = sheet.querySelector("[data-close]");
  if (away) { away.hidden = false; away.onclick = () => dialog.close(); }
  dialog.append(sheet);
  document.body.append(dialog);
  act.open = false;
  const done = () => { if (away) away.hidden = true; act.append(sheet); dialog.remove(); act.querySelector("summary").focus(); };
  dialog.addEventListener("close", done);
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.showModal();
  (sheet.querySelector("[aria-invalid=true]") ?? sheet.querySelector("#refused") ?? sheet.querySelector(fillable))?.focus();
}
const fillable = "form :is(input:not([type=hidden]), textarea, select), form button";

document.addEventListener("click", (event) => {
  const summary = event.target.closest(".act > summary");
  if (!summary) return;
  event.preventDefault();
  if (!document.querySelector("dialog[open]")) lift(summary.parentElement);
});

// -- rows: selection and keyboard ----------------------------------------------------------------------------

function count() {
  const boxes = [...document.querySelectorAll("input[data-pick]")];
  const chosen = boxes.filter((box) => box.checked).length;
  each("[data-chosen]", (place) => { place.textContent = chosen; });
  each("[data-needs-chosen]", (button) => { button.disabled = !chosen; });
}
document.addEventListener("change", (event) => { if (event.target.matches("[data-pick]")) count(); });

function walk(by) {
  const rows = [...document.querySelectorAll("table[data-rows] tbody tr")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("current"));
  const next = rows[Math.max(0, Math.min(rows.length - 1, at + by))];
  rows.forEach((row) => row.classList.toggle("current", row === next));
  (next.querySelector("a") ?? next).focus();
  next.scrollIntoView({ block: "nearest" });
}

function search() {
  const field = document.querySelector("[data-search]");
  field?.focus();
  field?.select();
}

// Suggestions are options of the search field; without them it is a plain form.
const field = document.querySelector("[data-suggest]");
let asking = 0;
field?.addEventListener("input", () => {
  clearTimeout(asking);
  asking = setTimeout(async () => {
    const address = new URL(field.dataset.suggest, location.href);
    address.searchParams.set("q", field.value);
    try {
      const answer = await fetch(address, { headers: { Accept: "application/json" }, redirect: "manual" });
      if (!answer.ok) return;
      const options = (await answer.json()).map((text) => Object.assign(document.createElement("option"), { value: text }));
      field.list.replaceChildren(...options);
    } catch { /* the field works without suggestions */ }
  }, 200);
});

const keys = {
  j: () => walk(1),
  k: () => walk(-1),
  x: () => document.querySelector("tr.current input[data-pick]")?.click(),
  r: () => document.querySelector("[data-key=r]")?.click(),
  "/": search,
  "?": () => document.getElementById("keys")?.showModal(),
};
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k" && !document.querySelector("dialog[open]")) { event.preventDefault(); search(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) return;
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

// -- live updates: after a hint the page is fetched, and its regions with `data-live` are changed in place

const key = (node) => node.id || node.dataset?.key || "";

function morph(old, fresh) {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept(old, name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && !kept(old, name)) old.setAttribute(name, value);
  if (old.matches("input, textarea, select, time")) return;
  children(old, fresh);
}

// Keep what the user opened, selected or typed.
const kept = (node, name) =>
  (name === "open" && node.localName === "details") || name === "checked" || (name === "value" && node.localName !== "progress") ||
  name === "hidden" || (name === "class" && node.localName === "tr") || node.localName === "time" && name === "title";

function children(old, fresh) {
  const known = new Map([...old.children].filter(key).map((child) => [key(child), child]));
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const twin = wanted.nodeType === 1 && key(wanted) ? known.get(key(wanted)) : alike(at, wanted) ? at : null;
    if (!twin) { old.insertBefore(wanted, at); if (wanted.nodeType === 1) enliven(wanted); continue; }
    if (twin === at) at = at.nextSibling; else old.insertBefore(twin, at);
    if (twin.nodeType !== 1) { if (twin.data !== wanted.data) twin.data = wanted.data; continue; }
    if (twin.localName === "time") { if (twin.dateTime !== wanted.dateTime) { twin.dateTime = wanted.dateTime; showTime(twin); } continue; }
    morph(twin, wanted);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

const alike = (a, b) =>
  a && a.nodeType === b.nodeType && (a.nodeType !== 1 || (a.localName === b.localName && !key(a) && a.className === b.className));

function busy(region) {
  const chosen = getSelection();
  const reading = chosen && !chosen.isCollapsed && region.contains(chosen.anchorNode);
  const typing = region.contains(document.activeElement) && document.activeElement.matches("input:not([data-pick]), textarea, select");
  return reading || typing || document.querySelector("dialog[open]") || region.querySelector(".act[open]");
}

// Present rows of a list change in place. New rows are counted, and shown when the user asks for them.
function freshen(region, found) {
  const pill = document.querySelector(`[data-fresh="${region.id}"]`);
  if (!pill) { morph(region, found); enliven(region); return; }
  const rows = [...found.querySelectorAll("tr[data-key]")];
  const mine = new Map([...region.querySelectorAll("tr[data-key]")].map((row) => [row.dataset.key, row]));
  const fresh = rows.filter((row) => !mine.has(row.dataset.key));
  if (!mine.size || !rows.length) { pill.hidden = true; morph(region, found); enliven(region); return; }
  for (const row of rows) if (mine.has(row.dataset.key)) morph(mine.get(row.dataset.key), row);
  // Without new rows, those that are gone did not just move to the next page.
  const shown = new Set(rows.map((row) => row.dataset.key));
  if (!fresh.length) for (const [name, row] of mine) if (!shown.has(name)) row.remove();
  enliven(region);
  pill.hidden = !fresh.length;
  // A page that is new from top to bottom may hide more new rows behind it.
  pill.textContent = texts.new.replace("{n}", fresh.length === rows.length ? `${fresh.length}+` : fresh.length);
  pill.onclick = (event) => { event.preventDefault(); pill.hidden = true; morph(region, found); enliven(region); count(); };
}

const changed = new Set();
let fetching = false, last = 0, timer = 0;

function soon(names) {
  names.forEach((name) => changed.add(name));
  if (timer || fetching) return;
  timer = setTimeout(refresh, Math.max(300, last + 2000 - Date.now()));
}

async function refresh() {
  timer = 0;
  if (document.hidden) return;
  const wanted = [...document.querySelectorAll("[data-live]")].filter((region) =>
    region.dataset.live.split(" ").some((name) => changed.has(name)));
  if (wanted.some(busy)) { timer = setTimeout(refresh, 2000); return; }
  const names = [...changed];
  changed.clear();
  if (!wanted.length) return;
  fetching = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual", signal: AbortSignal.timeout(15000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const region of wanted) {
      const found = page.getElementById(region.id);
      if (found && !busy(region)) freshen(region, found);
    }
    count();
    updated = Date.now();
  } catch { names.forEach((name) => changed.add(name)); } finally {
    fetching = false;
    last = Date.now();
    if (changed.size) soon([]);
  }
}

const everything = ["runs", "letters", "causes", "audit"];
const silence = 40000, firstPause = 1000, longestPause = 15000;  // milliseconds; the server sends something every 15 s
let updated = Date.now();

function listen() {
  const sign = document.getElementById("live"), label = sign.querySelector("[data-live-text]"), live = label.textContent;
  let stream = null, heard = 0, pause = firstPause, again = 0;
  const show = (text) => {
    sign.hidden = false;
    sign.classList.toggle("off", text !== live);
    if (label.textContent !== text) label.textContent = text;
  };
  const close = () => { clearTimeout(again); stream?.close(); stream = null; };
  const lost = () => {
    close();
    show(texts.offline.replace("{time}", axes.clock.format(updated)));
    again = setTimeout(open, pause);
    pause = Math.min(2 * pause, longestPause);
  };
  const hear = () => { heard = Date.now(); if (!changed.size) updated = heard; };
  const open = () => {
    close();
    heard = Date.now();
    stream = new EventSource(texts.events);
    stream.onerror = lost;
    // Changes while no stream was open are found by one refresh.
    stream.addEventListener("hello", () => { pause = firstPause; show(live); hear(); soon(everything); });
    stream.addEventListener("alive", hear);
    stream.addEventListener("bye", open);
    stream.addEventListener("hint", (event) => { hear(); soon(JSON.parse(event.data).changed); });
  };
  // A server that is gone without closing the connection is noticed by its silence.
  setInterval(() => { if (stream && Date.now() - heard > silence) lost(); }, 5000);
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else if (!stream) open(); });
  addEventListener("online", () => { if (!document.hidden) open(); });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted && !stream) open(); });
  if (!document.hidden) open();
}

// A page that shows a refused form again has the address of the form's target; reloading must not send the form again.
if (texts.address) history.replaceState(null, "", texts.address);
enliven();
count();
each(".act[open]", lift);
if (!document.querySelector("dialog[open]")) (document.querySelector("[data-refused] [aria-invalid=true]") ?? document.querySelector("[data-refused] :is(input:not([type=hidden]), textarea, select)") ?? document.getElementById("refused") ?? document.querySelector("main [aria-invalid=true]"))?.focus();
if (location.hash) document.querySelector(`details${location.hash.replace(/[^#\w-]/g, "")}`)?.setAttribute("open", "");
setInterval(() => { if (!document.hidden) each("time[data-as=ago]", showTime); }, 10000);
if (texts.events && document.querySelector("main [data-live]")) listen();
