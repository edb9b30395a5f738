;;; qwen-companion-header.el --- Header lines that fit, and their keys  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A header line shows the buffer's subject, warnings, and then keys.  In a
;; narrow window the least important parts are left out, but never warnings or
;; the keys that answer a request: beside these, warnings are cut off, and
;; their tooltips have the full text.  Keys can be clicked, and are shown as
;; they work in the buffer, whatever other keymaps are active there.
;;
;; One table per mode defines its keymap, its menu and its header line.

;;; Code:

(require 'cl-lib)
(require 'easymenu)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-untrusted)

(defvar tabulated-list-format)
(defvar tabulated-list-padding)
(defvar tabulated-list-sort-key)
(defvar tabulated-list-use-header-line)
(declare-function tabulated-list-init-header "tabulated-list" ())
(declare-function tabulated-list-print "tabulated-list" (&optional remember-pos update))

(defconst qwen-companion-header--key-weight 10
  "Least weight of a key that may be left out before texts are shortened.")

(defconst qwen-companion-header--name-width 8
  "Least columns left of the end of a name.")

(defconst qwen-companion-header--warning-width 8
  "Least columns left of the beginning of a warning.")

(defun qwen-companion-header--cut-warnings (parts excess)
  "Cut EXCESS columns off the longest warnings in PARTS, and return PARTS.
PARTS are (WEIGHT . STRING); warnings are those without a WEIGHT.  Each
keeps its beginning, and its tooltip shows the full text."
  (cl-flet ((width (part) (string-width (cdr part))))
    (let* ((warnings (cl-remove-if #'car parts))
           (room (- (apply #'+ (mapcar #'width warnings)) excess))
           (columns (apply #'max 0 (mapcar #'width warnings))))
      (while (and (> columns qwen-companion-header--warning-width)
                  (> (cl-loop for part in warnings sum (min columns (width part))) room))
        (cl-decf columns))
      (mapcar (lambda (part)
                (if (or (car part) (<= (width part) columns))
                    part
                  (cons nil (propertize
                             (truncate-string-to-width (cdr part) columns nil nil "…")
                             'help-echo (substring-no-properties (cdr part))))))
              parts))))

(defun qwen-companion-header-line (name parts)
  "Return a header line, escaped for the mode line, that fits its window.
It begins with NAME.  PARTS are (WEIGHT . TEXT), in the order shown; an
empty or nil TEXT is skipped, and (LONG . SHORT) as a TEXT is LONG if
there is room.  If the line is too long, drop the part with the greatest
WEIGHT, and the last of equal ones.  Cut the beginning of NAME before
dropping parts of WEIGHT 0.  Drop negative weights last, and never drop
parts of WEIGHT nil: cut these first.  Outside the selected window, drop
nothing."
  (let* ((parts (cl-remove-if (lambda (part) (member (cdr part) '(nil ""))) parts))
         (width (and (eq (window-buffer) (current-buffer))
                     (- (window-width) 2)))
         (short nil)
         (text (lambda (part)
                 (pcase (cdr part)
                   (`(,long . ,brief) (if short brief long))
                   (text text))))
         (left (lambda ()
                 (- width (cl-loop for part in parts
                                   sum (+ 2 (string-width (funcall text part)))))))
         (fit (lambda (columns least)
                (while (when-let* (((> columns (funcall left)))
                                   (weight (apply #'max (or (delq nil (mapcar #'car parts))
                                                            '(-2))))
                                   ((>= weight least)))
                         (setq parts (delq (cl-find weight parts :key #'car :from-end t)
                                           parts)))))))
    (when width
      (funcall fit (string-width name) qwen-companion-header--key-weight)
      (setq short (> (string-width name) (funcall left)))
      (funcall fit (string-width name) 1)
      (funcall fit (min (string-width name) qwen-companion-header--name-width) 0)
      (when (< (funcall left) (min (string-width name) qwen-companion-header--name-width))
        ;; The mode line shows the name.
        (setq name ""
              parts (mapcar (lambda (part) (cons (car part) (funcall text part))) parts)
              parts (qwen-companion-header--cut-warnings parts (- (funcall left))))
        (funcall fit 0 -1))
      (let ((room (max qwen-companion-header--name-width (funcall left))))
        (when (> (string-width name) room)
          (let ((width (string-width name)))
            (setq name (concat "…" (truncate-string-to-width name width (- width (1- room)))))))))
    (qwen-companion-untrusted-mode-line
     (concat " " name
             (mapconcat (lambda (part) (concat "  " (funcall text part))) parts "")))))

;;; Keys

(defun qwen-companion-header-key (command label &optional other)
  "Return a clickable text of the key of COMMAND in this buffer and LABEL.
With a second command OTHER, show both keys, as in \"n/p\"."
  (let ((map (make-sparse-keymap))
        (push (lambda (event)
                (interactive "e")
                (select-window (posn-window (event-start event)))
                (call-interactively command))))
    (define-key map [header-line mouse-1] push)
    (define-key map [header-line mouse-2] push)
    (propertize
     (concat (substitute-command-keys (format "\\[%s]" command))
             (when other
               (concat "/" (substitute-command-keys (format "\\[%s]" other))))
             " " label)
     'mouse-face 'mode-line-highlight
     'help-echo (format "mouse-1: %s" (qwen-companion-header--first-line command))
     'keymap map)))

(defun qwen-companion-header--first-line (command)
  "Return the first line of the documentation of COMMAND."
  (car (split-string (or (documentation command) "") "\n")))

(defvar-local qwen-companion-header--keys nil
  "The keys shown in this buffer: ((KEYS . STATE) . PARTS).
STATE is Evil's, on which the active keys depend.")

(defun qwen-companion-header-keys (keys)
  "Return KEYS as parts of `qwen-companion-header-line'.
KEYS are (COMMAND LABEL [OTHER KEEP]), the most important first, see
`qwen-companion-header-key'.  Keys with KEEP non-nil are dropped last, and
before them the key of `qwen-companion-header-help', which lists all keys."
  (let ((for (cons keys (bound-and-true-p evil-state))))
    (unless (equal for (car qwen-companion-header--keys))
      (setq qwen-companion-header--keys
            (cons for
                  (cl-loop for key in keys
                           for weight from 11
                           collect (cons (cond ((nth 3 key) -1)
                                               ((eq (car key) 'qwen-companion-header-help)
                                                qwen-companion-header--key-weight)
                                               (t weight))
                                         (apply #'qwen-companion-header-key
                                                (seq-take key 3)))))))
    (cdr qwen-companion-header--keys)))

;;; One table for each mode

(defmacro qwen-companion-header-define-keys (mode title &rest rows)
  "Define the keymap of MODE, its menu TITLE, and the keys in its header.
Each of ROWS is (KEYS COMMAND ITEM [LABEL] [PROPERTY VALUE]...):
KEYS is nil, a key as for `qwen-companion-buffers-keymap', or a list of
keys of which the last is shown.  COMMAND is a command, or a form for the
menu alone.  ITEM is its name in the menu and LABEL its name in the header
line, each nil for none.  If the form that is the value of :if returns
nil, COMMAND is inactive in the menu and not in the header line.  For
:other and :keep see `qwen-companion-header-keys', for other properties
`easy-menu-define'.  A row (NAME ROW...) is a submenu, and a string a
separator of the menu."
  (declare (indent 2))
  (let ((map (intern (format "%s-map" mode)))
        (rows-with-keys (cl-remove-if-not #'qwen-companion-header--row-p
                                          (cl-mapcan (lambda (row)
                                                       (if (qwen-companion-header--submenu-p row)
                                                           (copy-sequence (cdr row))
                                                         (list row)))
                                                     rows))))
    `(progn
       (defvar ,map
         (qwen-companion-buffers-keymap
          ,@(cl-loop for (keys command) in rows-with-keys
                     append (cl-loop for key in (if (listp keys) keys (list keys))
                                     append `(,key ,(if (eq key :parent)
                                                           command
                                                         `#',command)))))
         ,(format "Keymap of `%s'." mode))
       ,@(when title
           `((easy-menu-define ,(intern (format "%s-menu" mode)) ,map
               ,(format "Menu of `%s'." mode)
               '(,title ,@(mapcan #'qwen-companion-header--menu-items rows)))))
       (put ',mode 'qwen-companion-header-keys
            (list ,@(cl-loop for (_ command _ label . properties) in rows-with-keys
                             when (stringp label)
                             collect `(cons ',(list command label (plist-get properties :other)
                                                    (plist-get properties :keep))
                                            (lambda () ,(if (plist-member properties :if)
                                                            (plist-get properties :if)
                                                          t)))))))))

(defun qwen-companion-header--submenu-p (row)
  "Return non-nil when ROW of a table of keys is a submenu."
  (and (consp row) (stringp (car row)) (consp (cadr row))))

(defun qwen-companion-header--row-p (row)
  "Return non-nil when ROW of a table of keys is for a command."
  (and (consp row) (symbolp (cadr row))))

(defun qwen-companion-header--menu-items (row)
  "Return a list of the menu items for ROW of a table of keys."
  (pcase row
    ((pred stringp)
     (list row))
    ((pred qwen-companion-header--submenu-p)
     (list (cons (car row) (mapcan #'qwen-companion-header--menu-items (cdr row)))))
    (`(,_ ,command ,(and item (pred stringp)) . ,rest)
     (list (apply #'vector item command
                  (cl-loop for (property value)
                           on (if (keywordp (car rest)) rest (cdr rest)) by #'cddr
                           unless (memq property '(:other :keep))
                           append (list (if (eq property :if) :active property) value)))))))

(defun qwen-companion-header-mode-keys (&optional mode)
  "Return the applicable keys of MODE as parts of `qwen-companion-header-line'.
MODE defaults to the major mode."
  (qwen-companion-header-keys
   (cl-loop for (key . fits) in (get (or mode major-mode) 'qwen-companion-header-keys)
            when (funcall fits)
            collect key)))

(defconst qwen-companion-header--rest-width 20
  "Least width of the last column of a list that is kept in the first line.")

(defvar-local qwen-companion-header--columns nil
  "All columns of the list, (COLUMNS . COUNT).
In narrow windows a row has the first COUNT in its first line.")

(defun qwen-companion-header-set-up-list (summary &optional count)
  "Set up the current buffer as a list, with its keys in the header line.
Show the column names below it, and wrap long lines.  If the columns do
not fit and COUNT is non-nil, those after the first COUNT go into a second
line of each row.  SUMMARY is a function that returns the beginning of the
header line, (NAME . PARTS) as for `qwen-companion-header-line'.  Call this
in the mode's body."
  (setq-local truncate-lines nil
              truncate-partial-width-windows nil
              word-wrap t
              wrap-prefix "    "
              ;; A name in a right-to-left script must not reverse the line.
              bidi-paragraph-direction 'left-to-right
              tabulated-list-use-header-line nil
              revert-buffer-function #'qwen-companion-header--revert-list
              header-line-format
              `((:eval (qwen-companion-header--list-line #',summary))))
  (setq qwen-companion-header--columns (cons tabulated-list-format count))
  (tabulated-list-init-header)
  (qwen-companion-header-set-up-mode)
  ;; Which keys fit depends on the line at point.
  (add-hook 'post-command-hook #'force-mode-line-update nil t))

(defun qwen-companion-header--revert-list (&rest _)
  "Compute the entries of the list of the current buffer, and print it."
  (run-hooks 'tabulated-list-revert-hook)
  (qwen-companion-header-print-list))

(defun qwen-companion-header-print-list ()
  "Print the list of the current buffer.
Point stays on its row; at first it is on the first one."
  (let ((new (zerop (buffer-size))))
    (qwen-companion-header--fit-columns)
    (tabulated-list-print t)
    (when new
      (goto-char (point-min))
      (forward-line))))

(defun qwen-companion-header--fit-columns ()
  "Select the columns of the list that fit into a line of its window.
Give spare room to the first two columns."
  (pcase-let ((`(,columns . ,count) qwen-companion-header--columns)
              (window (get-buffer-window nil 0)))
    (when (and count window)
      (let ((room (- (window-width window) tabulated-list-padding
                     qwen-companion-header--rest-width
                     (cl-loop for (_ width) across columns sum (1+ width)))))
        (setq tabulated-list-format
              (if (< room 0)
                  (seq-subseq columns 0 count)
                (cl-loop with more = (min 12 (/ room 2))
                         for (name width . rest) across columns
                         for index from 0
                         vconcat (list (cons name (cons (if (< index 2) (+ width more) width)
                                                        rest)))))))
      (unless (cl-find (car tabulated-list-sort-key) tabulated-list-format
                       :key #'car :test #'equal)
        (setq tabulated-list-sort-key nil))
      (tabulated-list-init-header))))

(defun qwen-companion-header--list-line (summary)
  "Return the header line of a list, with SUMMARY for its beginning."
  (pcase-let ((`(,name . ,parts) (funcall summary)))
    (qwen-companion-header-line name (append parts (qwen-companion-header-mode-keys)))))

;;; Under other keymaps

(autoload 'qwen-companion-evil-keep-keys "qwen-companion-evil")
(autoload 'qwen-companion-meow-keep-keys "qwen-companion-meow")

(defun qwen-companion-header-keep-keys ()
  "Make the keys of the current major mode work with Evil, Meow and God mode.
Call this in the mode's body.  God mode ignores modes with `special' as
their property `mode-class'.  Meow binds few keys there, and the header
line shows the others."
  (put major-mode 'mode-class 'special)
  (when (featurep 'evil)
    (qwen-companion-evil-keep-keys (qwen-companion-header--map)))
  (when (featurep 'meow)
    (qwen-companion-meow-keep-keys)))

(defun qwen-companion-header--map ()
  "Return the keymap of the current major mode, or signal a `user-error'."
  (let ((map (intern (format "%s-map" major-mode))))
    (if (boundp map)
        (symbol-value map)
      (user-error "The mode of this buffer has no keymap"))))

;;; Clicks and context menus

(defun qwen-companion-header-click (event)
  "Move point to EVENT, a click, and run the command of RET there."
  (interactive "e")
  (mouse-set-point event)
  (call-interactively (key-binding (kbd "RET"))))

(defun qwen-companion-header-set-up-mode ()
  "Set up keys and context menu of the current major mode.
Call this in the mode's body.  A click with `context-menu-mode' moves
point first: the context menu includes the mode's menu, and its commands
act at point."
  (qwen-companion-header-keep-keys)
  (add-hook 'context-menu-functions #'qwen-companion-header--go-to-click -90 t))

(defun qwen-companion-header--go-to-click (menu click)
  "Move point to CLICK unless the region is active; return MENU."
  (when (and (mouse-event-p click)
             (not (posn-area (event-start click)))
             (not (use-region-p)))
    (mouse-set-point click))
  menu)

;;; Keys in messages

(defun qwen-companion-header-text (format &rest arguments)
  "Format FORMAT with ARGUMENTS and the keys of the selected window.
Keys are written in FORMAT as for `substitute-command-keys', and not
substituted in ARGUMENTS.  For a command without a key, use its
counterpart for files, with \"-here\" at the end, if that has one."
  (apply #'format
         (replace-regexp-in-string
          "\\(\\\\<[^>]+>\\)?\\\\\\[\\([^]]+\\)\\]"
          (lambda (found)
            (let* ((map (match-string 1 found))
                   (command (intern (match-string 2 found)))
                   (here (intern-soft (format "%s-here" command))))
              (save-match-data
                (with-current-buffer (window-buffer)
                  (string-replace
                   "%" "%%"
                   (substitute-command-keys
                    (if (or map (not (commandp here)) (where-is-internal command nil t))
                        found
                      (format "\\[%s]" here))))))))
          format t t)
         arguments))

(defun qwen-companion-header-error (format &rest arguments)
  "Signal a `user-error' with FORMAT and ARGUMENTS.
See `qwen-companion-header-text'."
  (user-error "%s" (apply #'qwen-companion-header-text format arguments)))

;;; All keys

(defun qwen-companion-header--commands (map)
  "Return the commands bound in MAP, without its parent, in order of definition."
  (let (commands)
    (letrec ((add (lambda (event binding)
                    (cond ((memq event '(menu-bar override-state)))
                          ((keymapp binding) (map-keymap-internal add binding))
                          ((commandp binding) (push binding commands))))))
      (map-keymap-internal add map))
    (delete-dups commands)))

(defconst qwen-companion-header--keys-width 15
  "Width of the column of keys in the help of `qwen-companion-header-help'.")

(defvar-local qwen-companion-header-help-origin nil
  "The buffer whose keys the help in this buffer describes.")

(defun qwen-companion-header-help ()
  "Show the keys of this buffer with a description of each."
  (interactive)
  (let* ((origin (current-buffer))
         (map (qwen-companion-header--map))
         (lines (cl-loop for command in (qwen-companion-header--commands map)
                         for keys = (mapconcat
                                     #'key-description
                                     (cl-remove-if (lambda (event)
                                                     (or (eq event 'menu-bar)
                                                         (mouse-event-p event)))
                                                   (where-is-internal command)
                                                   :key (lambda (key) (aref key 0)))
                                     ", ")
                         unless (string-empty-p keys)
                         collect (format "%s  %s\n"
                                         (string-pad keys (- qwen-companion-header--keys-width 2))
                                         (qwen-companion-header--first-line command)))))
    (with-help-window (help-buffer)
      (mapc #'princ lines)
      (princ (substitute-command-keys "\n\\[describe-mode] describes the mode with all keys.
Info node `(qwen-companion)Top', or \\[qwen-companion-manual], is the manual.\n")))
    (with-current-buffer (help-buffer)
      (setq-local qwen-companion-header-help-origin origin
                  truncate-partial-width-windows nil
                  word-wrap t
                  wrap-prefix (make-string qwen-companion-header--keys-width ?\s)))))

(provide 'qwen-companion-header)
;;; qwen-companion-header.el ends here
