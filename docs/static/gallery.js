// The filter of the front page, and a place in the tab order for what scrolls sideways. Without it the list is whole.
(function () {
  "use strict";

  const LABELS = { domain: "Domain", hardware: "Runs on", helped: "What helped" };
  const values = (element, facet) => element.dataset[facet].split("|");

  function addFilter(list) {
    const items = Array.from(list.children);
    const form = document.createElement("form");
    form.className = "gallery-filter";
    form.setAttribute("aria-label", "Filter the notebooks");
    const selects = Object.entries(LABELS).map(([facet, text]) => {
      const label = document.createElement("label");
      const select = document.createElement("select");
      select.name = facet;
      select.add(new Option("any", ""));
      values(list, facet).forEach((value) => select.add(new Option(value, value)));
      label.append(text, select);
      form.append(label);
      return select;
    });
    const reset = document.createElement("button");
    reset.type = "reset";
    reset.textContent = "Show all";
    const count = document.createElement("output");
    form.append(reset, count);

    function apply() {
      items.forEach((item) => {
        item.hidden = !selects.every((select) => !select.value || values(item, select.name).includes(select.value));
      });
      count.textContent = `${items.filter((item) => !item.hidden).length} of ${items.length} notebooks`;
    }
    form.addEventListener("change", apply);
    form.addEventListener("reset", () => setTimeout(apply));
    form.addEventListener("submit", (event) => event.preventDefault());
    list.before(form);
    apply();
  }

  function reachByKeyboard() {
    document.querySelectorAll("article pre, article .table-wrapper").forEach((element) => {
      if (element.scrollWidth > element.clientWidth) {
        element.tabIndex = 0;
      } else {
        element.removeAttribute("tabindex");
      }
    });
  }

  document.querySelectorAll(".gallery-list").forEach(addFilter);
  reachByKeyboard();
  window.addEventListener("resize", reachByKeyboard);
})();
