;;; qwen-companion-chat-blocks.el --- The blocks a chat is made of  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A chat's buffer has a read-only conversation and, below it, a prompt that
;; the user edits.  The conversation consists of blocks of whole lines.  Each
;; block has an id, by which it is found, replaced in place and folded.
;;
;; Changing a block moves no point, no window start and no marker outside of
;; the changed text, and undo in the prompt keeps working.
;;
;; A conversation consists of turns.  A new block is inserted at the end of its
;; turn, even if another turn has begun meanwhile; a block of an agent, after
;; the tool that started the agent.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-daemon-messages)

(defface qwen-companion-chat-markup
  '((t :inherit shadow))
  "Face of Markdown's markup characters."
  :group 'qwen-companion)

(defface qwen-companion-chat-separator
  '((((type tty)) :inherit shadow :underline t :extend t)
    (t :inherit shadow :overline t :extend t))
  "Face of the line between the conversation and the prompt."
  :group 'qwen-companion)

(cl-defstruct (qwen-companion-chat-block
               (:copier nil)
               (:constructor qwen-companion-chat-blocks--make))
  "A part of the conversation with the name ID, from START to END.
These are positions, not markers: with each change of the text, Emacs
adjusts all markers of the buffer, which took 30 s for 8,000 tools.  A
block consists of whole lines.  FOLD is `folded' or `open', the state of
all lines but the first, or nil when the block cannot be folded.  DATA is
for the file that inserted the block."
  id start end fold data)

(defvar-local qwen-companion-chat-blocks--table nil
  "Hash table of the blocks by their ids.")
(defvar-local qwen-companion-chat-blocks--order nil
  "The blocks, the last one of the conversation first.")
(defvar-local qwen-companion-chat-blocks--folded nil
  "Hash table: id of a block that the user has folded or opened -> folded.
It outlives the blocks, so that folding survives a reload.")
(defvar-local qwen-companion-chat-blocks--groups nil
  "Hash table: key of a turn or an agent -> its group.
See `qwen-companion-chat-blocks-groups-of'.")
(defvar-local qwen-companion-chat-blocks-conversation-end nil
  "Marker at the end of the conversation.")
(defvar-local qwen-companion-chat-blocks-prompt-start nil
  "Marker at the beginning of the prompt.")

(defvar qwen-companion-chat-conversation-map
  (qwen-companion-buffers-keymap
   "TAB" 'qwen-companion-chat-toggle-fold
   "<backtab>" 'qwen-companion-chat-toggle-all-folds
   "g" 'qwen-companion-chat-reload
   "q" 'quit-window)
  "Keymap of the conversation, above the prompt.
Files with other commands of the conversation add their keys.")

(defvar qwen-companion-chat-fold-map
  (qwen-companion-buffers-keymap
   :parent qwen-companion-chat-conversation-map
   "RET" #'qwen-companion-chat-toggle-fold
   [mouse-2] #'qwen-companion-chat-toggle-fold
   [follow-link] 'mouse-face)
  "Keymap of the first line of a block that can be folded.")

(defun qwen-companion-chat-blocks-set-up (separator)
  "Make the current buffer an empty conversation and an empty prompt.
The line SEPARATOR is between both."
  (let ((inhibit-read-only t))
    (erase-buffer)
    (let ((line (propertize (concat separator "\n")
                            'read-only t 'front-sticky '(read-only)
                            'rear-nonsticky t 'field 'boundary)))
      ;; Key names in it keep their face.
      (add-face-text-property 0 (length line) 'qwen-companion-chat-separator t line)
      (insert line)))
  (setq qwen-companion-chat-blocks--table (make-hash-table :test #'equal)
        qwen-companion-chat-blocks--order nil
        qwen-companion-chat-blocks--folded (make-hash-table :test #'equal)
        qwen-companion-chat-blocks--groups (make-hash-table :test #'equal)
        ;; The marker stays before text typed into the empty prompt.
        qwen-companion-chat-blocks-prompt-start (copy-marker (point-max))
        qwen-companion-chat-blocks-conversation-end (copy-marker (point-min) t))
  (set-buffer-modified-p nil)
  (setq buffer-undo-list nil))

;;; Changing the conversation

(defun qwen-companion-chat-blocks--shift-undo (delta)
  "Move all positions in the undo list by DELTA characters.
The undo list is only about the prompt, which has moved by DELTA."
  (unless (or (zerop delta) (atom buffer-undo-list))
    (let ((tail buffer-undo-list))
      (while tail
        (pcase (car tail)
          ((pred integerp) (cl-incf (car tail) delta))
          (`(,(pred integerp) . ,(pred integerp))
           (cl-incf (caar tail) delta)
           (cl-incf (cdar tail) delta))
          (`(,(pred stringp) . ,position)
           (setcdr (car tail) (if (< position 0) (- position delta) (+ position delta))))
          (`(nil ,_ ,_ ,_ . ,_)
           (let ((range (nthcdr 3 (car tail))))
             (cl-incf (car range) delta)
             (cl-incf (cdr range) delta)))
          (`(apply ,(pred integerp) ,_ ,_ . ,_)
           (cl-incf (nth 2 (car tail)) delta)
           (cl-incf (nth 3 (car tail)) delta)))
        (setq tail (cdr tail))))))

(defvar qwen-companion-chat-blocks--in-change nil
  "Non-nil while the conversation is being changed.")

(defmacro qwen-companion-chat-blocks-changing (&rest body)
  "Run BODY, which must only change the conversation, and keep the rest.
One form around several changes is cheaper than one around each."
  (declare (indent 0) (debug t))
  `(qwen-companion-chat-blocks--change (lambda () ,@body)))

(defun qwen-companion-chat-blocks--change (function)
  "Call FUNCTION to change the conversation; keep point and the undo list."
  (if qwen-companion-chat-blocks--in-change
      (save-excursion (funcall function))
    (let ((prompt (marker-position qwen-companion-chat-blocks-prompt-start))
          (end (marker-position qwen-companion-chat-blocks-conversation-end))
          (below (qwen-companion-chat-blocks--windows-below))
          (modified (buffer-modified-p))
          (qwen-companion-chat-blocks--in-change t))
      (save-restriction
        (widen)
        (prog1 (save-excursion
                 ;; This is no edit of the user: no undo, no lock file.
                 (let ((buffer-undo-list t)
                       (inhibit-read-only t)
                       (create-lockfiles nil))
                   (funcall function)))
          (restore-buffer-modified-p modified)
          (dolist (window below)
            ;; Keep point visible, by scrolling if necessary.
            (set-window-start window (min end qwen-companion-chat-blocks-conversation-end) t))
          (qwen-companion-chat-blocks--shift-undo
           (- qwen-companion-chat-blocks-prompt-start prompt)))))))

(defun qwen-companion-chat-blocks--windows-below ()
  "Return the windows that start with the prompt and have point in it.
Unless scrolled, they would not show new text above the prompt."
  (cl-loop for window in (get-buffer-window-list nil nil t)
           when (and (<= qwen-companion-chat-blocks-prompt-start (window-point window))
                     (< qwen-companion-chat-blocks-conversation-end (window-start window))
                     (<= (window-start window) qwen-companion-chat-blocks-prompt-start))
           collect window))

;; Emacs marks each property of each piece of the conversation whenever it
;; collects garbage, and a category is one property in place of four.
(setplist 'qwen-companion-chat-blocks--line
          (list 'read-only t 'front-sticky '(read-only) 'rear-nonsticky t
                'keymap qwen-companion-chat-conversation-map))

(defun qwen-companion-chat-blocks--properties (id)
  "Return the text properties of the block ID.
They give the conversation's keymap to parts without a keymap."
  (list 'qwen-companion-chat-block id 'category 'qwen-companion-chat-blocks--line))

(defun qwen-companion-chat-blocks--as-lines (id text)
  "Return TEXT as whole lines of the block ID, with their properties."
  (let ((text (concat text (unless (string-suffix-p "\n" text) "\n"))))
    (add-text-properties 0 (length text) (qwen-companion-chat-blocks--properties id) text)
    text))

(defun qwen-companion-chat-blocks--put (id text &optional after)
  "Set the text of the block ID to TEXT, and return the block.
Insert a new block after the block AFTER, by default at the end of the
conversation."
  (qwen-companion-chat-blocks-changing
    (let ((text (qwen-companion-chat-blocks--as-lines id text))
          (block (qwen-companion-chat-blocks-get id)))
      (if block
          (qwen-companion-chat-blocks--replace block text)
        (setq block (qwen-companion-chat-blocks--insert id text after)))
      block)))

(defun qwen-companion-chat-blocks--insert (id text after)
  "Insert TEXT as the new block ID after the block AFTER; return it."
  (let* ((before (qwen-companion-chat-blocks-get after))
         (start (if before
                    (qwen-companion-chat-block-end before)
                  (marker-position qwen-companion-chat-blocks-conversation-end)))
         (block (qwen-companion-chat-blocks--make
                 :id id :start start :end (+ start (length text)))))
    (goto-char start)
    (insert text)
    (if (or (not before) (eq before (car qwen-companion-chat-blocks--order)))
        (push block qwen-companion-chat-blocks--order)
      (let ((place qwen-companion-chat-blocks--order))
        (while (not (eq before (cadr place)))
          (pop place))
        (setcdr place (cons block (cdr place)))
        (qwen-companion-chat-blocks--shift block (length text))))
    (puthash id block qwen-companion-chat-blocks--table)))

(defun qwen-companion-chat-blocks--shift (block delta)
  "Move the positions of all blocks after BLOCK by DELTA characters."
  ;; Nearly all changes are in one of the last blocks.
  (let ((rest qwen-companion-chat-blocks--order))
    (while (not (eq block (car rest)))
      (cl-incf (qwen-companion-chat-block-start (car rest)) delta)
      (cl-incf (qwen-companion-chat-block-end (car rest)) delta)
      (pop rest))))

(defun qwen-companion-chat-blocks--replace (block text)
  "Set the text of BLOCK to TEXT; change only the part that differs.
All of the block gets the properties of TEXT."
  (let* ((start (qwen-companion-chat-block-start block))
         (old (buffer-substring-no-properties
               start (qwen-companion-chat-block-end block)))
         (old-line (1+ (string-search "\n" old)))
         (line (1+ (string-search "\n" text))))
    ;; The first line has the status, and new text comes at the end: the text
    ;; between them must not count as changed.
    (qwen-companion-chat-blocks--replace-part (+ start old-line) (substring old old-line)
                                              (substring text line))
    (qwen-companion-chat-blocks--replace-part start (substring old 0 old-line)
                                              (substring text 0 line))
    (setf (qwen-companion-chat-block-end block) (+ start (length text)))
    (qwen-companion-chat-blocks--shift block (- (length text) (length old)))
    (pcase-dolist (`(,from ,to ,properties) (object-intervals text))
      (set-text-properties (+ start from) (+ start to) properties))))

(defun qwen-companion-chat-blocks--replace-part (start old new)
  "Replace OLD, the text at START, by NEW, except their common ends."
  (let* ((difference (compare-strings old nil nil new nil nil))
         (head (if (eq difference t) (length old) (1- (abs difference))))
         (tail (qwen-companion-chat-blocks--common-suffix
                old new (- (min (length old) (length new)) head))))
    (goto-char (+ start head))
    ;; Delete first, so that point inside the old text ends at its beginning.
    (delete-region (point) (+ start (- (length old) tail)))
    (insert (substring new head (- (length new) tail)))))

(defun qwen-companion-chat-blocks-append (id text properties)
  "Append TEXT with PROPERTIES to the last line of the block ID.
Leave the properties of the existing text alone."
  (qwen-companion-chat-blocks-changing
    (let* ((block (qwen-companion-chat-blocks-get id))
           (start (1- (qwen-companion-chat-block-end block))))
      (goto-char start)
      (insert text)
      ;; A propertized copy of the text would be garbage.
      (with-silent-modifications
        (add-text-properties start (point)
                             (append properties (qwen-companion-chat-blocks--properties id))))
      (cl-incf (qwen-companion-chat-block-end block) (length text))
      (qwen-companion-chat-blocks--shift block (length text)))))

(defun qwen-companion-chat-blocks-clear ()
  "Remove all blocks."
  (setq qwen-companion-chat-blocks--order nil)
  (clrhash qwen-companion-chat-blocks--table)
  (clrhash qwen-companion-chat-blocks--groups)
  (qwen-companion-chat-blocks-changing
    (delete-region (point-min) qwen-companion-chat-blocks-conversation-end)))

(defun qwen-companion-chat-blocks--common-suffix (one other most)
  "Return the length of the common suffix of ONE and OTHER, at most MOST."
  (let ((least 0))
    ;; Bisect; comparing reversed strings would create garbage.
    (while (< least most)
      (let ((count (- most (/ (- most least) 2))))
        (if (eq t (compare-strings one (- (length one) count) nil
                                   other (- (length other) count) nil))
            (setq least count)
          (setq most (1- count)))))
    least))

;;; Lookup

(defun qwen-companion-chat-blocks-get (id)
  "Return the block with the name ID, or nil."
  (gethash id qwen-companion-chat-blocks--table))

(defun qwen-companion-chat-blocks-list ()
  "Return all blocks in the order of the conversation."
  (reverse qwen-companion-chat-blocks--order))

(defun qwen-companion-chat-blocks-at (position)
  "Return the block at POSITION, or nil."
  (when-let* ((id (get-text-property position 'qwen-companion-chat-block)))
    (qwen-companion-chat-blocks-get id)))

;;; Folding

(defun qwen-companion-chat-blocks-make-foldable (id folded)
  "Make all but the first line of the block ID foldable.
Fold it if FOLDED is non-nil, unless the user has folded or opened it."
  (let ((block (qwen-companion-chat-blocks-get id)))
    (pcase-let ((`(,from . ,to) (qwen-companion-chat-blocks--fold-extent block)))
      (when (< from to)
        (unless (qwen-companion-chat-block-fold block)
          (setf (qwen-companion-chat-block-fold block)
                (if (gethash id qwen-companion-chat-blocks--folded folded) 'folded 'open)))
        (qwen-companion-chat-blocks--draw-fold block from to)
        (qwen-companion-chat-blocks--mark-fold (qwen-companion-chat-block-start block) from)))))

(defun qwen-companion-chat-blocks--fold-extent (block)
  "Return (START . END) of the text of BLOCK that can be folded.
That is all after the first line, but not the newline at the end."
  (cons (save-excursion
          (goto-char (qwen-companion-chat-block-start block))
          (search-forward "\n")
          (1- (point)))
        (1- (qwen-companion-chat-block-end block))))

(defun qwen-companion-chat-blocks--draw-fold (block start end)
  "Hide or show the text of BLOCK from START to END according to its slot `fold'."
  (with-silent-modifications
    (if (eq 'folded (qwen-companion-chat-block-fold block))
        (put-text-property start end 'invisible 'qwen-companion-chat-fold)
      (remove-text-properties start end '(invisible nil)))))

(defun qwen-companion-chat-blocks--fold-block (block folded)
  "Fold BLOCK, which can be folded, if FOLDED is non-nil, else open it."
  (setf (qwen-companion-chat-block-fold block) (if folded 'folded 'open))
  (save-restriction
    (widen)
    (pcase-let ((`(,start . ,end) (qwen-companion-chat-blocks--fold-extent block)))
      (qwen-companion-chat-blocks--draw-fold block start end))))

(defun qwen-companion-chat-blocks--choose-fold (block folded)
  "Fold BLOCK if FOLDED is non-nil, else open it; remember that for its id."
  (puthash (qwen-companion-chat-block-id block) folded qwen-companion-chat-blocks--folded)
  (qwen-companion-chat-blocks--fold-block block folded))

(defun qwen-companion-chat-blocks--mark-fold (start end)
  "Let the line from START to END fold and open the lines below it."
  ;; Only once, since changed properties cause redisplay.
  (unless (eq qwen-companion-chat-fold-map (get-text-property start 'keymap))
    (with-silent-modifications
      (add-text-properties start end
                           (list 'keymap qwen-companion-chat-fold-map
                                 'mouse-face 'highlight
                                 'help-echo "TAB, mouse-1: fold or open")))))

(defconst qwen-companion-chat-blocks--line-limit 5000
  "Characters of a line above which the rest of the line is folded.
Emacs scans all of a line to display any part of it: with a line of
200,000 characters in view, each key in the prompt took 0.1 s.")

(defun qwen-companion-chat-blocks-fold-lines (start end)
  "Fold the ends of long lines from the line at START to END.
A line that the user has opened stays open."
  (save-excursion
    (goto-char start)
    (forward-line 0)
    (while (< (point) end)
      (let ((rest (+ (point) qwen-companion-chat-blocks--line-limit)))
        (forward-line)
        (when (< rest (1- (point)))
          (qwen-companion-chat-blocks--fold-rest rest (1- (point))))))))

(defun qwen-companion-chat-blocks--fold-rest (start end)
  "Fold the rest of a line, from START to END."
  (let ((fold (qwen-companion-chat-blocks--line-fold start)))
    (unless fold
      (setq fold (make-overlay start end))
      (overlay-put fold 'evaporate t)
      (overlay-put fold 'isearch-open-invisible #'qwen-companion-chat-blocks--open-fold)
      (overlay-put fold 'invisible 'qwen-companion-chat-fold-rest))
    (move-overlay fold start end)
    (overlay-put fold 'qwen-companion-chat-label
                 (propertize
                  (substitute-command-keys
                   (format "\\<qwen-companion-chat-conversation-map>%d more characters; \\[qwen-companion-chat-toggle-fold] shows them"
                           (- end start)))
                  'face 'shadow))
    (qwen-companion-chat-blocks--show-folded fold (overlay-get fold 'invisible))))

(defun qwen-companion-chat-blocks--line-fold (position)
  "Return the overlay over the rest of the line at POSITION, or nil."
  (save-excursion
    (goto-char position)
    (forward-line 0)
    (cl-find-if (lambda (overlay) (overlay-get overlay 'qwen-companion-chat-label))
                (overlays-at (+ (point) qwen-companion-chat-blocks--line-limit)))))

(defun qwen-companion-chat-blocks--open-fold (fold)
  "Open the overlay FOLD, since a search has ended in it."
  (qwen-companion-chat-blocks--show-folded fold nil))

(defun qwen-companion-chat-blocks--show-folded (fold folded)
  "Show the overlay FOLD folded if FOLDED is non-nil, else open."
  (overlay-put fold 'invisible (and folded 'qwen-companion-chat-fold-rest))
  (overlay-put fold 'after-string
               (and folded (overlay-get fold 'qwen-companion-chat-label))))

(defun qwen-companion-chat-toggle-fold (&optional event)
  "Fold or open the rest of a long line, the thoughts or the tool at point.
With EVENT, a mouse event, do so where it happened."
  (interactive (list last-nonmenu-event) qwen-companion-chat-mode)
  (when (mouse-event-p event)
    (posn-set-point (event-end event)))
  (let* ((block (qwen-companion-chat-blocks-at (point)))
         (line (and block (qwen-companion-chat-blocks--line-fold (point)))))
    (cond
     (line
      (qwen-companion-chat-blocks--show-folded line (not (overlay-get line 'invisible)))
      (when (overlay-get line 'invisible)
        (forward-line 0)))
     ((and block (qwen-companion-chat-block-fold block))
      (let ((fold (eq 'open (qwen-companion-chat-block-fold block))))
        (qwen-companion-chat-blocks--choose-fold block fold)
        (when fold
          (qwen-companion-chat-blocks--leave-fold block))))
     (t (user-error "Nothing to fold or open here")))))

(defun qwen-companion-chat-blocks--leave-fold (block)
  "Move point out of the folded text of BLOCK, to its first line."
  (pcase-let ((`(,start . ,end) (qwen-companion-chat-blocks--fold-extent block)))
    (when (<= start (point) end)
      (goto-char (qwen-companion-chat-block-start block)))))

(defun qwen-companion-chat-toggle-all-folds ()
  "Open all thoughts and tools of this chat; if all are open, fold them.
Very long lines stay folded."
  (interactive nil qwen-companion-chat-mode)
  (let* ((blocks (cl-remove-if-not #'qwen-companion-chat-block-fold
                                   qwen-companion-chat-blocks--order))
         (fold (not (cl-find 'folded blocks :key #'qwen-companion-chat-block-fold)))
         (here (qwen-companion-chat-blocks-at (point))))
    (unless blocks
      (user-error "Nothing to fold or open in this chat"))
    (dolist (block blocks)
      (qwen-companion-chat-blocks--choose-fold block fold))
    (when (and fold (memq here blocks))
      (qwen-companion-chat-blocks--leave-fold here))))

;;; Searching

;; Isearch opens overlays around a match.  Blocks have none, since Emacs
;; processes all overlays with each change of the text.

(defvar-local qwen-companion-chat-blocks--searched nil
  "The folded block that the search has opened, or nil.")

(defun qwen-companion-chat-blocks-enable-search ()
  "Let a search in the current buffer match folded text and hidden markup."
  (add-to-invisibility-spec '(qwen-companion-chat-fold . t))
  (add-to-invisibility-spec '(qwen-companion-chat-fold-rest . t))
  (setq-local isearch-filter-predicate #'qwen-companion-chat-blocks--search-filter)
  (add-hook 'isearch-update-post-hook #'qwen-companion-chat-blocks--on-match nil t)
  (add-hook 'isearch-mode-end-hook #'qwen-companion-chat-blocks--on-search-end nil t))

(defun qwen-companion-chat-blocks--search-filter (start end)
  "Return non-nil when a search may end at the text from START to END."
  (let ((buffer-invisibility-spec
         (remq 'qwen-companion-chat-markup
               (if search-invisible
                   (remove '(qwen-companion-chat-fold . t) buffer-invisibility-spec)
                 buffer-invisibility-spec))))
    (isearch-filter-visible start end)))

(defun qwen-companion-chat-blocks--on-match ()
  "Open the folded block at the match of a search; fold the one before again."
  (let ((block (and isearch-success isearch-other-end
                    (qwen-companion-chat-blocks-at (min (point) isearch-other-end)))))
    (unless (eq block qwen-companion-chat-blocks--searched)
      (qwen-companion-chat-blocks--fold-searched)
      (when (and block (text-property-any (min (point) isearch-other-end)
                                          (max (point) isearch-other-end)
                                          'invisible 'qwen-companion-chat-fold))
        (setq qwen-companion-chat-blocks--searched block)
        (qwen-companion-chat-blocks--fold-block block nil)))))

(defun qwen-companion-chat-blocks--fold-searched ()
  "Fold the block that the search has opened again, if it is still there."
  (when-let* ((block qwen-companion-chat-blocks--searched))
    (setq qwen-companion-chat-blocks--searched nil)
    (when (memq block qwen-companion-chat-blocks--order)
      (qwen-companion-chat-blocks--fold-block block t))))

(defun qwen-companion-chat-blocks--on-search-end ()
  "Leave the block at the end of a search open, unless the search was quit."
  (if isearch-mode-end-hook-quit
      (qwen-companion-chat-blocks--fold-searched)
    (when-let* ((block qwen-companion-chat-blocks--searched))
      (setq qwen-companion-chat-blocks--searched nil)
      (qwen-companion-chat-blocks--choose-fold block nil))))

;;; Indentation

(defun qwen-companion-chat-blocks-indent (text prefix)
  "Return TEXT displayed behind PREFIX, added to its own prefixes.
PREFIX does not become part of the text."
  (let ((text (copy-sequence text))
        (start 0))
    (while (< start (length text))
      (let ((end (min (next-single-property-change start 'line-prefix text (length text))
                      (next-single-property-change start 'wrap-prefix text (length text)))))
        (dolist (property '(line-prefix wrap-prefix))
          (put-text-property start end property
                             (concat prefix (get-text-property start property text))
                             text))
        (setq start end)))
    text))

;;; Buttons

(defun qwen-companion-chat-blocks-button (text function &rest arguments)
  "Return TEXT as a button to call FUNCTION with ARGUMENTS.
The call is made in the chat's buffer, with point on the button."
  (let ((act (lambda (event)
               (interactive (list last-nonmenu-event))
               (when (mouse-event-p event)
                 (mouse-set-point event))
               (apply function arguments)))
        (map (make-sparse-keymap)))
    (set-keymap-parent map qwen-companion-chat-conversation-map)
    (define-key map (kbd "RET") act)
    (define-key map [mouse-2] act)
    (define-key map [follow-link] 'mouse-face)
    (propertize text 'face 'link 'mouse-face 'highlight 'keymap map
                'help-echo "RET, mouse-2: follow")))

;;; Turns and agents

(cl-defstruct (qwen-companion-chat-group
               (:copier nil)
               (:constructor qwen-companion-chat-blocks--make-group))
  "A turn or an agent: LAST is the id of its last block, COUNT their number.
VOICE is the speaker in LAST while more text may follow, else nil."
  last voice (count 0))

(defun qwen-companion-chat-blocks--group (key)
  "Return the group with KEY, (turn ID) or (tool ID)."
  (or (gethash key qwen-companion-chat-blocks--groups)
      (puthash key (qwen-companion-chat-blocks--make-group) qwen-companion-chat-blocks--groups)))

(defun qwen-companion-chat-blocks-groups-of (change)
  "Return the groups of CHANGE, the innermost first.
An agent's group is inside the turn of the tool that started the agent."
  (let ((parent (qwen-companion-daemon-text-parent change))
        (groups (list (qwen-companion-chat-blocks--group
                       (list 'turn (qwen-companion-daemon-change-turn change))))))
    (if (qwen-companion-chat-blocks-get (list 'tool parent))
        (cons (qwen-companion-chat-blocks--group (list 'tool parent)) groups)
      groups)))

(defun qwen-companion-chat-blocks-next-id (change kind)
  "Return an id for a new block of KIND that CHANGE begins.
It stays the same after a reload of the conversation."
  (let ((group (car (qwen-companion-chat-blocks-groups-of change))))
    (list kind
          (qwen-companion-daemon-change-turn change)
          (qwen-companion-daemon-text-parent change)
          (cl-incf (qwen-companion-chat-group-count group)))))

(defun qwen-companion-chat-blocks-add (change id text)
  "Insert TEXT as the block ID at the end of the turn of CHANGE.
If CHANGE is from an agent, insert it after the agent's other blocks.  If
the block exists, replace its text."
  (let* ((groups (qwen-companion-chat-blocks-groups-of change))
         (parent (qwen-companion-daemon-text-parent change))
         (agent (cdr groups))
         ;; A change without a turn is inserted at the end.
         (last (and (or agent (qwen-companion-daemon-change-turn change))
                    (or (qwen-companion-chat-group-last (car groups))
                        (and agent (list 'tool parent)))))
         (text (if agent (qwen-companion-chat-blocks-indent text "  ") text))
         (new (not (qwen-companion-chat-blocks-get id))))
    (qwen-companion-chat-blocks--put id text last)
    (when new
      (dolist (group groups)
        (when (or (eq group (car groups))
                  (equal last (qwen-companion-chat-group-last group)))
          (setf (qwen-companion-chat-group-last group) id
                (qwen-companion-chat-group-voice group) nil))))))

(provide 'qwen-companion-chat-blocks)
;;; qwen-companion-chat-blocks.el ends here
