// Tabs, with the chosen one in the address so that it can be kept as a bookmark.

const MOVES = { ArrowRight: 1, ArrowLeft: -1 };

/** `onShow(name)` hears which panel is shown. */
export function startTabs(onShow) {
  const tabs = [...document.querySelectorAll("[role=tab]:not([hidden])")];
  const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));
  const nameOf = (tab) => tab.getAttribute("aria-controls");
  const show = (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", `${tab === chosen}`);
      tab.tabIndex = tab === chosen ? 0 : -1;
      panelOf(tab).hidden = tab !== chosen;
    }
    onShow(nameOf(chosen));
  };
  const fromAddress = () =>
    show(tabs.find((tab) => `#${nameOf(tab)}` === location.hash) ?? tabs[0]);
  const go = (tab) => {
    history.replaceState(null, "", `#${nameOf(tab)}`);
    show(tab);
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => go(tab));
    tab.addEventListener("keydown", (event) => {
      const next = MOVES[event.key] && tabs[(index + MOVES[event.key] + tabs.length) % tabs.length];
      if (!next) return;
      event.preventDefault();
      next.focus();
      go(next);
    });
  });
  addEventListener("hashchange", fromAddress);
  fromAddress();
  return { go: (name) => go(tabs.find((tab) => nameOf(tab) === name)) };
}
