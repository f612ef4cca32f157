// Refreshes the page while it is visible. Everything works without this script.
(() => {
  "use strict";

  const refresher = document.getElementById("refresher");
  if (!refresher) return;
  const period = Number(refresher.dataset.seconds) * 1000;
  const stale = document.getElementById("stale");
  const changed = document.getElementById("changed");
  let held = false;
  let etag = refresher.dataset.etag;
  let asked = Date.now();
  let rendered = asked;

  // True while a refresh would discard something of the person's: a half-filled form, an open list of choices, or a selection.
  function isBusy() {
    const page = document.getElementById("page");
    if (!page || page.querySelector("dialog[open]")) return true;
    const focused = document.activeElement;
    if (focused && page.contains(focused) && focused.matches("input:not([type=checkbox]):not([type=radio]), select, textarea")) return true;
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && page.contains(selection.anchorNode)) return true;
    return [...page.querySelectorAll("input, textarea, select")].some((field) => {
      if (field.type === "hidden") return false;
      if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
      if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
      const options = [...field.options];
      const initial = options.some((option) => option.defaultSelected);
      return initial ? options.some((option) => option.selected !== option.defaultSelected) : !field.multiple && field.selectedIndex > 0;
    });
  }

  // True while the pointer or the focus is on a button or link, or the pointer is on a row with a tick box: the target must not move just
  // before the click, and a row must not be replaced by another one.
  // On a touch screen, the last thing that was touched counts as hovered forever, so only the focus counts there.
  function isAimed() {
    const page = document.getElementById("page");
    if (!page) return false;
    const targets = "button, summary, form, a.button, tbody a, tr:has(button, a.button, input[type=checkbox])";
    if (window.matchMedia("(hover: hover)").matches && page.querySelector(`:is(${targets}):hover`)) return true;
    const focused = document.activeElement;
    return Boolean(focused && page.contains(focused) && focused.matches("button, a.button, tbody a, tbody input"));
  }

  // The number of rows in a response that the page does not show yet, in words.
  function news(text) {
    const rows = (root) => [...root.querySelectorAll("#page tbody th a[href]")].map((one) => one.getAttribute("href"));
    const known = new Set(rows(document)), answered = rows(new DOMParser().parseFromString(text, "text/html"));
    const fresh = answered.filter((one) => !known.has(one)).length;
    if (!fresh) return "This page has changed.";
    return `${fresh}${fresh === answered.length ? " or more" : ""} ${fresh === 1 ? "new entry" : "new entries"}.`;
  }

  // An age in the words of the server (`age` in rendering.py), in whole seconds.
  function words(seconds) {
    const whole = Math.round(Math.abs(seconds));
    const parts = whole >= 86400 ? [[whole / 86400, "d"], [whole % 86400 / 3600, "h"]]
      : whole >= 3600 ? [[whole / 3600, "h"], [whole % 3600 / 60, "min"]]
      : whole >= 600 ? [[whole / 60, "min"]] : [[whole / 60, "min"], [whole % 60, "s"]];
    const span = parts.filter(([count]) => count >= 1).map(([count, unit]) => `${Math.floor(count)}\u00a0${unit}`).join("\u00a0");
    return !span ? "now" : seconds > 0 ? `${span}\u00a0ago` : `in ${span}`;
  }

  function advanceAges() {
    const passed = (Date.now() - rendered) / 1000;
    for (const one of document.querySelectorAll("#page [data-age]")) one.textContent = words(Number(one.dataset.age) + passed);
  }

  function refresh() {
    if (document.hidden || isBusy()) return;
    if (!isAimed()) advanceAges();
    asked = Date.now();
    htmx.trigger(refresher, "refresh");
  }

  refresher.addEventListener("htmx:config:request", (event) => {
    const headers = event.detail.ctx.request.headers;
    if (etag) headers["If-None-Match"] = etag;
    delete headers["HX-Current-URL"]; // it may contain what a person searched for, and the server does not need it
  });
  refresher.addEventListener("htmx:after:request", (event) => {
    const response = event.detail.ctx.response;
    if (response.status === 200) etag = response.headers.get("ETag");
    if (stale) stale.hidden = response.status < 500;
  });
  // Keep whatever a person began while the response was on its way.
  refresher.addEventListener("htmx:before:swap", (event) => {
    const aimed = isAimed();
    if (aimed || isBusy()) {
      event.preventDefault();
      etag = null;
      held = aimed;
      if (aimed && changed) changed.querySelector("span").textContent = news(event.detail.ctx.text);
    }
  });
  refresher.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx.response.status === 200) rendered = Date.now();
  });
  refresher.addEventListener("htmx:finally:request", () => {
    if (changed) changed.hidden = !held;
    held = false;
  });
  refresher.addEventListener("htmx:error", () => {
    if (stale) stale.hidden = false;
  });

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && Date.now() - asked >= period) refresh();
  });
  setInterval(refresh, period);
})();
