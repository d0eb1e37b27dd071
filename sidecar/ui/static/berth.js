// Keeps a page up to date while it is visible. Without this script a page shows the state at the
// time it was loaded, and everything else works.
"use strict";
(() => {
  const pollEvery = 5000; // while there is no stream
  const patience = 3000; // before a stream that ended, and may be open again at once, is reported
  const silence = 40000; // after which a stream is considered dead: it has a beat every 15 s
  const lost = "Disconnected, trying again. What is shown may be old.";
  const main = document.getElementById("main");
  const connection = document.getElementById("connection");
  let url = document.body.dataset.live || "";
  let stream = null;
  let timer = 0; // of the next try
  let report = 0; // of the report that there is no connection
  let polls = 0;
  let turn = 0; // grows with every address that is shown, so that late answers are ignored
  let shown = location.pathname + location.search;

  // --- times -----------------------------------------------------------------------------------

  const minute = 60, hour = 60 * minute, day = 24 * hour;

  function coarse(seconds) {
    const s = Math.floor(seconds);
    if (s < minute) return s + " s";
    if (s < hour) return Math.floor(s / minute) + " min";
    if (s < 2 * day) return Math.floor(s / hour) + " h";
    return Math.floor(s / day) + " d";
  }

  function relative(time, now, way) {
    const seconds = (now - time) / 1000;
    if (way === "in") return seconds > 0 ? coarse(seconds) + " ago" : "in " + coarse(-seconds);
    return seconds < 1 ? "just now" : coarse(seconds) + " ago";
  }

  function showTimes() {
    const now = Date.now();
    for (const t of document.querySelectorAll("time[data-time]")) {
      const text = relative(Date.parse(t.dateTime), now, t.dataset.time);
      if (t.textContent !== text) t.textContent = text;
    }
  }

  // --- changing what is shown --------------------------------------------------------------------

  // parse returns the document of an HTML text. Its scripts do not run.
  function parse(html) {
    return new DOMParser().parseFromString(html, "text/html");
  }

  // same reports whether a node can be changed into another and stay the same for the reader.
  function same(a, b) {
    return a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.id || "") === (b.id || "");
  }

  // morph changes a node into another. It keeps the focus, the selection, the scroll position, typed
  // text, and whether details are open.
  function morph(old, now) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
      return;
    }
    if (old.isEqualNode(now)) return;
    const relativeTime = old.nodeName === "TIME" && old.dataset.time && old.dateTime === now.dateTime;
    for (const a of [...old.attributes]) {
      if (!now.hasAttribute(a.name) && !keeps(old, a.name)) old.removeAttribute(a.name);
    }
    for (const a of now.attributes) {
      if (old.getAttribute(a.name) !== a.value && !keeps(old, a.name)) old.setAttribute(a.name, a.value);
    }
    if (!relativeTime) morphChildren(old, now);
  }

  // keeps reports whether the reader sets an attribute: open details, and typed text.
  function keeps(node, name) {
    return node.nodeName === "DETAILS" && name === "open" ||
      node.nodeName === "INPUT" && (name === "value" || name === "checked");
  }

  // move puts a child before another. Where the browser can, it keeps its focus and its animations.
  function move(parent, child, before) {
    if (parent.moveBefore) parent.moveBefore(child, before);
    else parent.insertBefore(child, before);
  }

  function morphChildren(old, now) {
    const wanted = new Set();
    for (const c of now.children) if (c.id) wanted.add(c.id);
    const byID = new Map();
    for (const c of old.children) if (c.id) byID.set(c.id, c);
    let at = old.firstChild;
    const drop = () => {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    };
    for (const want of [...now.childNodes]) {
      // What is not wanted goes first, so that what follows need not move.
      const element = want.nodeType === Node.ELEMENT_NODE;
      while (at && (at.id ? !wanted.has(at.id) : element && at.nodeType === Node.TEXT_NODE)) drop();
      const have = want.id ? byID.get(want.id) : at;
      if (!have || !same(have, want)) {
        old.insertBefore(document.importNode(want, true), at);
        continue;
      }
      if (have === at) at = at.nextSibling;
      else move(old, have, at);
      morph(have, want);
    }
    while (at) drop();
  }

  const logs = () => main.querySelectorAll("[data-follow]");

  // show shows a new main part. A log whose end is visible stays at its end.
  function show(next) {
    const focused = document.activeElement;
    const away = new Set([...logs()].filter((e) => e.scrollHeight - e.scrollTop - e.clientHeight > 4));
    morphChildren(main, next);
    for (const e of logs()) if (!away.has(e)) e.scrollTop = e.scrollHeight;
    if (focused !== document.activeElement && focused && focused.isConnected) focused.focus({ preventScroll: true });
    const asOf = document.getElementById("as-of");
    const now = new Date().toISOString();
    asOf.dateTime = now;
    asOf.textContent = now.slice(0, 19).replace("T", " ") + " UTC";
    showTimes();
  }

  function connected(is) {
    clearTimeout(report);
    report = 0;
    const text = is ? "" : lost;
    if (connection.textContent === text) return;
    connection.textContent = text;
    connection.classList.toggle("lost", !is);
    main.classList.toggle("stale", !is);
  }

  // --- the stream, and polling without one --------------------------------------------------------

  function listen() {
    if (!url || document.hidden) return;
    stop();
    const mine = stream = new EventSource(url);
    timer = setTimeout(quiet, silence);
    const on = (name, what) => mine.addEventListener(name, (e) => {
      if (mine !== stream) return;
      clearTimeout(timer);
      timer = setTimeout(quiet, silence);
      connected(true);
      what(e);
    });
    on("open", () => {});
    on("beat", () => {});
    on("title", (e) => { document.title = e.data + " · berth"; });
    on("main", (e) => show(parse(e.data).body));
    mine.addEventListener("error", () => {
      if (mine !== stream) return;
      if (!report) report = setTimeout(() => connected(false), patience);
      if (mine.readyState !== EventSource.CLOSED) return; // it tries again by itself
      // The server or a proxy refuses the stream: poll the page.
      fallBack();
    });
  }

  // quiet opens a stream again that has sent nothing for too long.
  function quiet() {
    connected(false);
    listen();
  }

  function fallBack() {
    stop();
    polls = 0;
    poll();
  }

  function stop() {
    if (stream) stream.close();
    stream = null;
    clearTimeout(timer);
    clearTimeout(report);
    timer = report = 0;
  }

  // poll loads the page, and tries a stream again every 30 s.
  async function poll() {
    const mine = turn;
    timer = 0;
    try {
      await load(url, mine);
      connected(true);
      if (++polls % 6 === 0 && mine === turn) {
        listen();
        return;
      }
    } catch {
      if (mine === turn) connected(false);
    }
    if (mine === turn && !document.hidden && !stream && !timer) timer = setTimeout(poll, pollEvery);
  }

  // load loads a page and shows its main part, also that of an error.
  async function load(from, mine) {
    const answer = await fetch(from, { headers: { Accept: "text/html" }, redirect: "follow" });
    const text = await answer.text();
    if (mine !== turn) return;
    const next = parse(text);
    const body = next.getElementById("main");
    if (new URL(answer.url).pathname !== new URL(from, location.href).pathname) {
      location.assign(from); // the sign-in ended
      return;
    }
    if (!body) throw new Error("not a page of berth"); // but one of a proxy
    show(body);
    document.title = next.title;
  }

  // visit loads an address of this page in place. Link is set for a link that was clicked: then
  // the address gets an entry in the history.
  async function visit(to, link) {
    const mine = ++turn;
    stop();
    try {
      await load(to.href, mine);
    } catch {
      if (mine === turn) location.assign(to.href);
      return;
    }
    if (mine !== turn) return;
    if (link) history.pushState(null, "", to.href);
    for (const e of logs()) e.scrollTop = e.scrollHeight;
    shown = to.pathname + to.search;
    for (const a of document.querySelectorAll("footer a")) a.href = to.href;
    if (document.body.dataset.live) {
      url = to.href;
      listen();
    }
  }

  // --- links that change only what this page shows ---------------------------------------------

  document.addEventListener("click", (e) => {
    const link = e.target.closest && e.target.closest("a[data-soft]");
    if (!link || e.defaultPrevented || e.button || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
    const to = new URL(link.href);
    if (to.origin !== location.origin || to.pathname !== location.pathname) return;
    e.preventDefault();
    visit(to, link);
  });

  // Back and Forward: the entries are addresses of this page.
  addEventListener("popstate", () => {
    if (location.pathname + location.search !== shown) visit(new URL(location.href));
  });

  // A stream takes one of the few connections that a browser makes to a server: a page that is
  // not visible needs none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else listen();
  });
  addEventListener("offline", () => { if (url && !document.hidden) fallBack(); }); // the server may be this machine
  addEventListener("online", listen);
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (e) => { if (e.persisted) listen(); });

  // A message is shown once.
  const here = new URL(location.href);
  if (here.searchParams.has("said")) {
    here.searchParams.delete("said");
    here.searchParams.delete("seal");
    history.replaceState(history.state, "", here.href);
    shown = here.pathname + here.search;
  }
  for (const e of logs()) e.scrollTop = e.scrollHeight;

  showTimes();
  setInterval(showTimes, 1000);
  listen();
})();
