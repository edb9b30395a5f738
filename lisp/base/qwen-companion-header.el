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

(eval-and-compile
  (defconst qwen-companion-header--verbs
    '((next "n") (previous "p") (visit "RET") (fold "TAB" "fold") (refresh "g" "refresh")
      (help "?" "keys") (copy "w") (prompt "r" "prompt") (terminal "t" "terminal")
      (review "v" "review") (difference "d" "difference") (end "k")
      (retry "y" "try again") (adopt "b" "bring home") (exclude "x" "hide or show"))
    "What a key means in each list: (VERB KEY [LABEL]), LABEL in the header line.")

  (defun qwen-companion-header--submenu-p (row)
    "Return non-nil when ROW of a table of keys is a submenu."
    (and (consp row) (stringp (car row)) (consp (cadr row))))

  (defun qwen-companion-header--resolve (row)
    "Return ROW of a table of keys with keys in place of verbs."
    (pcase row
      ((pred stringp) row)
      ((pred qwen-companion-header--submenu-p)
       (cons (car row) (mapcar #'qwen-companion-header--resolve (cdr row))))
      (`(,keys ,command ,item . ,rest)
       (let* ((verbs (mapcar (lambda (key) (assq key qwen-companion-header--verbs))
                             (ensure-list keys)))
              (label (nth 2 (car (last verbs)))))
         `(,(if (remq nil verbs) (mapcar #'cadr verbs) keys) ,command ,item
           ,@(and label (not (stringp (car rest))) (list label))
           ,@rest))))))

(defmacro qwen-companion-header-define-keys (mode title &rest rows)
  "Define the keymap of MODE, its menu TITLE, and the keys in its header.
Each of ROWS is (KEYS COMMAND ITEM [LABEL] [PROPERTY VALUE]...): KEYS is
nil, a key as for `qwen-companion-buffers-keymap', a verb of
`qwen-companion-header--verbs', or a list of keys or of verbs of which the
last is shown.  COMMAND is a command, or a form for the menu alone.  ITEM
is its name in the menu and LABEL its name in the header line, each nil
for none; a verb has its own LABEL.  If the form that is the value of :if
returns nil, COMMAND is inactive in the menu and not in the header line.
The value of :embark is the key of COMMAND as an action of Embark, or t for
the one shown.  For :other and :keep see `qwen-companion-header-keys', for
other properties `easy-menu-define'.  A row (NAME ROW...) is a submenu, and
a string a separator of the menu."
  (declare (indent 2))
  (let* ((map (intern (format "%s-map" mode)))
         (rows (mapcar #'qwen-companion-header--resolve rows))
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
       (put ',mode 'qwen-companion-header-actions
            ',(cl-loop for (keys command . rest) in rows-with-keys
                       for key = (cadr (memq :embark rest))
                       when key
                       collect (cons (if (eq key t) (car (last (ensure-list keys))) key)
                                     command)))
       (put ',mode 'qwen-companion-header-keys
            (list ,@(cl-loop for (_ command _ label . properties) in rows-with-keys
                             when (stringp label)
                             collect `(cons ',(list command label (plist-get properties :other)
                                                    (plist-get properties :keep))
                                            (lambda () ,(if (plist-member properties :if)
                                                            (plist-get properties :if)
                                                          t)))))))))

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
                           unless (memq property '(:other :keep :embark))
                           append (list (if (eq property :if) :active property) value)))))))

(defun qwen-companion-header-mode-keys (&optional mode)
  "Return the applicable keys of MODE as parts of `qwen-companion-header-line'.
MODE defaults to the major mode."
  (qwen-companion-header-keys
   (cl-loop for (key . fits) in (get (or mode major-mode) 'qwen-companion-header-keys)
            when (funcall fits)
            collect key)))

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
substituted in ARGUMENTS."
  (apply #'format
         (replace-regexp-in-string
          "\\(\\\\<[^>]+>\\)?\\\\\\[[^]]+\\]"
          (lambda (found)
            (save-match-data
              (with-current-buffer (window-buffer)
                (string-replace "%" "%%" (substitute-command-keys found)))))
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
