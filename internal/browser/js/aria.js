// What WAI-ARIA 1.2 knows.

const set = text => new Set(text.trim().split(/\s+/));

const roles = set(`alert alertdialog application article banner blockquote button caption cell checkbox code columnheader combobox
  comment complementary contentinfo definition deletion dialog directory document emphasis feed figure form generic graphics-document
  graphics-object graphics-symbol grid gridcell group heading img insertion link list listbox listitem log main mark marquee math menu
  menubar menuitem menuitemcheckbox menuitemradio meter navigation none note option paragraph presentation progressbar radio radiogroup
  region row rowgroup rowheader scrollbar search searchbox separator slider spinbutton status strong subscript suggestion superscript
  switch tab table tablist tabpanel term textbox time timer toolbar tooltip tree treegrid treeitem`);

const bool = /^(true|false)$/, tri = /^(true|false|mixed)$/, maybe = /^(true|false|undefined)?$/, int = /^-?\d+$/, num = /^-?\d*\.?\d+$/, any = /^/;
const refs = Symbol("the ids of elements");

// attributes and the values that they may have.
const attributes = {
  "aria-activedescendant": refs, "aria-atomic": bool, "aria-autocomplete": /^(inline|list|both|none)$/, "aria-braillelabel": any,
  "aria-brailleroledescription": any, "aria-busy": bool, "aria-checked": tri, "aria-colcount": int, "aria-colindex": int,
  "aria-colindextext": any, "aria-colspan": int, "aria-controls": refs,
  "aria-current": /^(page|step|location|date|time|true|false)$/, "aria-describedby": refs, "aria-description": any,
  "aria-details": refs, "aria-disabled": bool, "aria-errormessage": refs, "aria-expanded": maybe, "aria-flowto": refs,
  "aria-haspopup": /^(true|false|menu|listbox|tree|grid|dialog)$/, "aria-hidden": maybe, "aria-invalid": /^(true|false|grammar|spelling)$/,
  "aria-keyshortcuts": any, "aria-label": /\S/, "aria-labelledby": refs, "aria-level": /^[1-9]\d*$/, "aria-live": /^(off|polite|assertive)$/,
  "aria-modal": bool, "aria-multiline": bool, "aria-multiselectable": bool, "aria-orientation": /^(horizontal|vertical|undefined)$/,
  "aria-owns": refs, "aria-placeholder": any, "aria-posinset": int, "aria-pressed": /^(true|false|mixed|undefined)?$/, "aria-readonly": bool,
  "aria-relevant": /^((additions|removals|text|all)\s*)+$/, "aria-required": bool, "aria-roledescription": /\S/, "aria-rowcount": int,
  "aria-rowindex": int, "aria-rowindextext": any, "aria-rowspan": int, "aria-selected": maybe, "aria-setsize": int,
  "aria-sort": /^(ascending|descending|none|other)$/, "aria-valuemax": num, "aria-valuemin": num, "aria-valuenow": num, "aria-valuetext": any,
};

// needed attributes of roles, where HTML does not bring them.
const needed = {
  checkbox: ["aria-checked"], combobox: ["aria-expanded"], heading: ["aria-level"], menuitemcheckbox: ["aria-checked"],
  menuitemradio: ["aria-checked"], meter: ["aria-valuenow"], radio: ["aria-checked"], scrollbar: ["aria-controls", "aria-valuenow"],
  slider: ["aria-valuenow"], switch: ["aria-checked"],
};

// parents that roles need, and children.
const parents = {
  listitem: set("list"), tab: set("tablist"), option: set("listbox group combobox"), menuitem: set("menu menubar group"),
  menuitemcheckbox: set("menu menubar group"), menuitemradio: set("menu menubar group"), row: set("table grid treegrid rowgroup"),
  rowgroup: set("table grid treegrid"), cell: set("row"), gridcell: set("row"), columnheader: set("row"), rowheader: set("row"),
  treeitem: set("tree group"),
};
const children = {
  list: set("listitem"), tablist: set("tab"), listbox: set("option group"), menu: set("menuitem menuitemcheckbox menuitemradio group"),
  menubar: set("menuitem menuitemcheckbox menuitemradio group"), table: set("row rowgroup"), grid: set("row rowgroup"),
  rowgroup: set("row"), row: set("cell gridcell columnheader rowheader"), tree: set("treeitem group"), radiogroup: set("radio"),
};

// nameless roles may not be given a name: it would not be read out.
const nameless = set("caption code deletion emphasis generic insertion mark none paragraph presentation strong subscript suggestion superscript");

// flat roles have children that are read as mere text.
const flat = set("button checkbox img link menuitem menuitemcheckbox menuitemradio meter option progressbar radio scrollbar slider switch tab");

const landmarks = set("banner complementary contentinfo form main navigation region search");
