// Updates an open page from its event stream. Pages and forms work without JavaScript too.
"use strict";

(() => {
  const RECONNECT_DELAY = 5000; // milliseconds without a connection before the badge shows it
  let source = null;
  let lostTimer = null;

  function apply(update) {
    for (const [key, text] of Object.entries(update.values || {})) {
      for (const element of document.querySelectorAll(`[data-value="${CSS.escape(key)}"]`)) {
        if (element.textContent !== text) element.textContent = text;
      }
    }
    for (const [id, svg] of Object.entries(update.charts || {})) {
      const chart = document.getElementById(id);
      if (chart) chart.replaceChildren(new DOMParser().parseFromString(svg, "text/html").body.firstChild);
    }
    for (const [id, value] of Object.entries(update.progress || {})) {
      const bar = document.getElementById(id);
      if (bar) bar.value = value;
    }
    const main = document.getElementById("main");
    if (update.shape && main.dataset.shape && update.shape !== main.dataset.shape) reload();
  }

  // A page with another shape is fetched as a whole, because its forms carry this session's CSRF token.
  let reloading = false;
  async function reload() {
    if (reloading || isBusy()) return;
    reloading = true;
    try {
      const address = new URL(location.href);
      address.searchParams.delete("message");
      const response = await fetch(address, { headers: { Accept: "text/html" } });
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      const main = document.getElementById("main");
      const next = fresh.getElementById("main");
      if (next && !isBusy()) {
        const focused = focusIndex(document.activeElement, main);
        const flash = main.querySelector(":scope > .flash");
        if (flash) next.prepend(flash);
        main.replaceWith(next);
        if (focused >= 0) (focusable(next)[focused] || next).focus({ preventScroll: true });
        document.title = fresh.title;
        if (next.dataset.live !== main.dataset.live) connect();
        relativeTimes();
      }
    } catch {
      // The connection is lost; the stream's onerror shows it.
    } finally {
      reloading = false;
    }
  }

  // A page is not replaced while its user types or has a confirmation open.
  function isBusy() {
    const active = document.activeElement;
    return (active && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName)) ||
      document.querySelector("#main details.confirm[open], #main .more :checked") !== null;
  }

  function focusable(container) {
    return [...container.querySelectorAll("a[href], button, input, select, summary, [tabindex]")];
  }

  function focusIndex(element, container) {
    return element && container.contains(element) ? focusable(container).indexOf(element) : -1;
  }

  function showStatus(text, off) {
    const badge = document.getElementById("live");
    if (!badge) return;
    badge.hidden = false;
    badge.classList.toggle("off", off);
    if (badge.textContent !== text) badge.textContent = text;
  }

  function connect() {
    if (source) source.close();
    source = null;
    const address = document.getElementById("main").dataset.live;
    if (!address) {
      const badge = document.getElementById("live");
      if (badge) badge.hidden = true;
      return;
    }
    source = new EventSource(address);
    source.onopen = () => {
      clearTimeout(lostTimer);
      lostTimer = null;
      showStatus("live", false);
    };
    source.onmessage = (event) => {
      showStatus("live", false);
      apply(JSON.parse(event.data));
    };
    source.addEventListener("problem", (event) => showStatus(JSON.parse(event.data), true));
    source.onerror = () => {
      if (source && source.readyState === EventSource.CLOSED) setTimeout(connect, RECONNECT_DELAY);
      if (!lostTimer) lostTimer = setTimeout(() => showStatus("disconnected", true), RECONNECT_DELAY);
    };
  }

  function span(seconds) {
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
    }
    return seconds >= 10 ? `${Math.round(seconds)} s` : `${seconds.toFixed(1)} s`;
  }

  function relativeTimes() {
    for (const element of document.querySelectorAll("time[datetime]")) {
      const seconds = (Date.now() - Date.parse(element.dateTime)) / 1000;
      element.textContent = seconds < 0 ? `in ${span(-seconds)}` : `${span(seconds)} ago`;
    }
  }

  // A hidden page holds no stream.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      if (source) source.close();
      source = null;
    } else {
      connect();
    }
  });

  // A form is sent once, even if its button is pressed twice.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });

  // The link that a command prints has the token as its fragment, which browsers send to no server.
  const token = document.getElementById("token");
  if (token && location.hash.length > 1) {
    token.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname + location.search);
    token.form.requestSubmit();
  }

  connect();
  setInterval(relativeTimes, 1000);
})();
