// Keeps an open page up to date. Without it, every page can still be read and every form still works.
"use strict";

(() => {
  const QUIET_FOR = 5000; // milliseconds without the line before the page says so
  let source = null;
  let lost = null;

  function apply(update) {
    for (const [key, text] of Object.entries(update.values || {})) {
      for (const element of document.querySelectorAll(`[data-value="${CSS.escape(key)}"]`)) {
        if (element.textContent !== text) element.textContent = text;
      }
    }
    for (const [id, svg] of Object.entries(update.charts || {})) {
      const place = document.getElementById(id);
      if (place) place.replaceChildren(new DOMParser().parseFromString(svg, "text/html").body.firstChild);
    }
    for (const [id, value] of Object.entries(update.progress || {})) {
      const bar = document.getElementById(id);
      if (bar) bar.value = value;
    }
    const main = document.getElementById("main");
    if (update.shape && main.dataset.shape && update.shape !== main.dataset.shape) reload();
  }

  // What has another shape than the page is fetched whole: it has forms, which are this session's own.
  let reloading = false;
  async function reload() {
    if (reloading || isBusy()) return;
    reloading = true;
    try {
      const address = new URL(location.href);
      address.searchParams.delete("said");
      const answer = await fetch(address, { headers: { Accept: "text/html" } });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const main = document.getElementById("main");
      const next = fresh.getElementById("main");
      if (next && !isBusy()) {
        const had = place(document.activeElement, main);
        const said = main.querySelector(":scope > .said");
        if (said) next.prepend(said);
        main.replaceWith(next);
        if (had >= 0) (focusable(next)[had] || next).focus({ preventScroll: true });
        document.title = fresh.title;
        if (next.dataset.live !== main.dataset.live) connect();
        relativeTimes();
      }
    } catch {
      // The line is gone, and the stream says so.
    } finally {
      reloading = false;
    }
  }

  // Nothing is replaced under the hands of somebody who types or is about to confirm.
  function isBusy() {
    const active = document.activeElement;
    return (active && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName)) ||
      document.querySelector("#main details.confirm[open]") !== null;
  }

  function focusable(within) {
    return [...within.querySelectorAll("a[href], button, input, select, summary, [tabindex]")];
  }

  function place(element, within) {
    return element && within.contains(element) ? focusable(within).indexOf(element) : -1;
  }

  function say(text, off) {
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
      clearTimeout(lost);
      lost = null;
      say("live", false);
    };
    source.onmessage = (event) => {
      say("live", false);
      apply(JSON.parse(event.data));
    };
    source.addEventListener("problem", (event) => say(JSON.parse(event.data), true));
    source.onerror = () => {
      if (source && source.readyState === EventSource.CLOSED) setTimeout(connect, QUIET_FOR);
      if (!lost) lost = setTimeout(() => say("not live", true), QUIET_FOR);
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

  // A page that nobody sees costs nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      if (source) source.close();
      source = null;
    } else {
      connect();
    }
  });

  // A form is sent once, however often its button is pressed.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });

  connect();
  setInterval(relativeTimes, 1000);
})();
