;;; qwen-companion-chat-permissions.el --- Permissions and questions in a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A tool asks for a permission, or for the answers to a form.  The question is
;; shown in the conversation and counted in the mode line; no minibuffer
;; appears by itself.  The daemon offers the options; the key of an option
;; depends on its effect, never on its position: see
;; `qwen-companion-chat-permissions--keys'.
;;
;; Before a tool can be allowed, its input and its changes of files must have
;; been shown: in the conversation, or if they are too long, completely in a
;; separate buffer.
;;
;; A key never answers a question that the user has not read: the keys answer
;; the oldest question, and a question that has just become the oldest ignores
;; them for a moment.
;;
;; A form has questions with one or several answers to choose, or an answer of
;; the user's own.  QUESTIONS are those of a `daemon-permission' report;
;; ANSWERS is the list of chosen answers for each of them.  Questions are
;; counted from 0.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'text-property-search)
(require 'qwen-companion-chat-blocks)
(require 'qwen-companion-chat-places)
(require 'qwen-companion-chat-review)
(require 'qwen-companion-chat-send)
(require 'qwen-companion-chat-state)
(require 'qwen-companion-chat-tools)
(require 'qwen-companion-completion)
(require 'qwen-companion-daemon)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-disk)
(require 'qwen-companion-header)
(require 'qwen-companion-risks)
(require 'qwen-companion-spool)
(require 'qwen-companion-untrusted)

(defface qwen-companion-chat-permission
  '((t :inherit warning))
  "Face of the title of a question."
  :group 'qwen-companion)

(defface qwen-companion-chat-permission-input
  '((t :inherit font-lock-string-face))
  "Face of the input of a tool that asks for permission."
  :group 'qwen-companion)

(defface qwen-companion-chat-permission-writes
  '((t :inherit warning :weight normal))
  "Face of the lasting effect of an option."
  :group 'qwen-companion)

(defface qwen-companion-chat-permission-key
  '((t :inherit help-key-binding))
  "Face of the key of an option."
  :group 'qwen-companion)

(defconst qwen-companion-chat-permissions--key-delay 0.7
  "Seconds for which a question ignores keys after it has become the oldest.")

(cl-defstruct (qwen-companion-chat-permissions--item
               (:constructor qwen-companion-chat-permissions--make)
               (:copier nil))
  "A question that waits for the user.
REPORT is the latest `daemon-permission' report.  SINCE is the time since
which the keys answer this question, in seconds since the epoch, or nil.
ANSWERS has for each question of a form the list of its answers.  REVISION
is the revision of the tool that is shown.  DIFFS is an alist of the
indexes of its changes and their lines: a string, `large', or `failed'.
SEEN is non-nil after all of it was shown in a separate buffer.  SENT is
non-nil while an answer is being sent.  PROBLEM is the reason why the last
answer has failed."
  report since answers revision diffs seen sent problem)

(defvar-local qwen-companion-chat-permissions--items nil
  "The questions that wait in this chat, oldest first.")

(defun qwen-companion-chat-permissions--id (item)
  "Return the id of the permission of ITEM."
  (qwen-companion-daemon-permission-permission
   (qwen-companion-chat-permissions--item-report item)))

(defun qwen-companion-chat-permissions--find (id)
  "Return the item of this chat with the permission ID, or nil."
  (cl-find id qwen-companion-chat-permissions--items :test #'equal
           :key #'qwen-companion-chat-permissions--id))

(defun qwen-companion-chat-permissions--current-p (item revision)
  "Return non-nil when ITEM still waits, with REVISION of its tool."
  (and (memq item qwen-companion-chat-permissions--items)
       (eql revision (qwen-companion-chat-permissions--item-revision item))))

(defun qwen-companion-chat-permissions--lines-of (item diff)
  "Return the lines of DIFF, a change of the tool of ITEM, or their state."
  (alist-get (qwen-companion-daemon-diff-index diff)
             (qwen-companion-chat-permissions--item-diffs item)))

(defun qwen-companion-chat-permissions--held-p (item)
  "Return non-nil if ITEM cannot be answered because the connection is lost."
  (or (eq 'held (qwen-companion-daemon-permission-state
                 (qwen-companion-chat-permissions--item-report item)))
      (memq (qwen-companion-daemon-session-state qwen-companion-chat-session)
            '(disconnected closed dead off))))

;;; Texts

(defconst qwen-companion-chat-permissions--keys
  '((no . ?n) (once . ?y) (session . ?!) (project . ?W) (user . ?U))
  "Alist (EFFECT . KEY) of the effects of options, the safest first.
`project' and `user' write a rule into the settings of the workspace or
the user.  Other options, and further ones with the same effect, have
digits.")

(defconst qwen-companion-chat-permissions--dismiss-key ?d
  "Key that dismisses a question.")

(defun qwen-companion-chat-permissions--effect (option)
  "Return the effect of OPTION, a symbol.
It is one in `qwen-companion-chat-permissions--keys', or `unknown'."
  (let ((writes (qwen-companion-daemon-option-writes option)))
    (cond (writes)
          ((not (qwen-companion-daemon-option-allows option)) 'no)
          ((qwen-companion-daemon-option-lasting option) 'session)
          (t 'once))))

(defun qwen-companion-chat-permissions--options (item)
  "Return the options of ITEM with their keys, the safest first.
Each is (KEY . OPTION); KEY is nil for those beyond the digits."
  (let ((keys qwen-companion-chat-permissions--keys)
        (digits (number-sequence ?1 ?9)))
    (mapcar
     (lambda (option)
       (let ((key (assq (qwen-companion-chat-permissions--effect option) keys)))
         (setq keys (remq key keys))
         (cons (if key (cdr key) (pop digits)) option)))
     (cl-stable-sort
      (copy-sequence (qwen-companion-daemon-permission-options
                      (qwen-companion-chat-permissions--item-report item)))
      #'< :key #'qwen-companion-chat-permissions--danger))))

(defun qwen-companion-chat-permissions--danger (option)
  "Return the rank of OPTION, from the safest to the most lasting."
  (let ((effects (mapcar #'car qwen-companion-chat-permissions--keys)))
    (or (cl-position (qwen-companion-chat-permissions--effect option) effects)
        (length effects))))

(defun qwen-companion-chat-permissions--option-text (option)
  "Return the text about the lasting effect of OPTION, or \"\"."
  (if-let* ((text (pcase (qwen-companion-chat-permissions--effect option)
                    ('project "writes a rule into .qwen/settings.json of the workspace")
                    ('user "writes a rule into ~/.qwen/settings.json")
                    ('unknown (if (qwen-companion-daemon-option-lasting option)
                                  "lasting; its effect on the daemon's host is unknown"
                                "an unknown kind of option; it may allow more than this once"))
                    ('session "holds for the rest of this session"))))
      (propertize (concat "  " text) 'face 'qwen-companion-chat-permission-writes)
    ""))

(defun qwen-companion-chat-permissions--key (key)
  "Return KEY, a text, with the face of keys."
  (propertize key 'face 'qwen-companion-chat-permission-key))

(defvar qwen-companion-chat-answer-map)

(defun qwen-companion-chat-permissions--key-text (key)
  "Return the keys that choose the option with KEY, a character or nil."
  (qwen-companion-chat-permissions--key
   (if key
       (format "%s %c"
               (key-description (where-is-internal qwen-companion-chat-answer-map nil t)) key)
     (string-pad "RET" 9))))

(defun qwen-companion-chat-permissions--review-line (tool)
  "Return the line with the key for a review of TOOL, or \"\"."
  (if (qwen-companion-daemon-tool-diffs tool)
      (format "  %s  %s\n"
              (qwen-companion-chat-permissions--key
               (string-pad (substitute-command-keys "\\[qwen-companion-chat-show-change]") 9))
              (if (qwen-companion-chat-permissions--reviewable tool)
                  "review it: edit it or drop parts of it, and answer there"
                "show all of it"))
    ""))

(defun qwen-companion-chat-permissions--option-lines (item active)
  "Return the lines of the options of ITEM; with ACTIVE, with their keys."
  (mapconcat
   (pcase-lambda (`(,key . ,option))
     (let ((line (concat "  "
                         (if active
                             (qwen-companion-chat-permissions--key-text key)
                           (make-string 9 ?\s))
                         "  "
                         (qwen-companion-untrusted-line
                          (qwen-companion-daemon-option-label option))
                         (qwen-companion-chat-permissions--option-text option)
                         "\n")))
       (put-text-property 0 (length line) 'wrap-prefix (make-string 13 ?\s) line)
       (if active
           (propertize line
                       'qwen-companion-chat-option (qwen-companion-daemon-option-id option)
                       'mouse-face 'highlight)
         line)))
   (qwen-companion-chat-permissions--options item)
   ""))

(defun qwen-companion-chat-permissions--input (tool)
  "Return the input of TOOL to be shown, (TEXT . MORE), or nil.
MORE is the number of omitted characters, or nil.  A tool that changes
files is shown by its changes, and by the command if it runs one."
  (cond ((and (qwen-companion-daemon-tool-input tool)
              (or (qwen-companion-daemon-tool-command tool)
                  (not (qwen-companion-daemon-tool-diffs tool))))
         (cons (qwen-companion-daemon-tool-input tool)
               (qwen-companion-daemon-tool-input-more tool)))
        ((qwen-companion-daemon-tool-command tool)
         (cons (qwen-companion-daemon-tool-command tool)
               (qwen-companion-daemon-tool-command-more tool)))))

(defun qwen-companion-chat-permissions--input-lines (tool)
  "Return the lines of the input of TOOL, or \"\"."
  (pcase (qwen-companion-chat-permissions--input tool)
    (`(,text . ,more)
     (concat
      (propertize (concat (qwen-companion-untrusted-text
                           (string-remove-suffix "\n" text) t)
                          "\n")
                  'line-prefix "    " 'wrap-prefix "    "
                  'face 'qwen-companion-chat-permission-input)
      (if more
          (qwen-companion-chat-permissions--see-all-line
           (format "%d characters more" more))
        "")))
    (_ "")))

(defun qwen-companion-chat-permissions--see-all-line (text)
  "Return a line with TEXT and the key to see all."
  (concat "    " (propertize text 'face 'warning) "  "
          (substitute-command-keys "\\[qwen-companion-chat-show-change] shows all\n")))

(defun qwen-companion-chat-permissions--diff-lines (item tool)
  "Return the lines about the files that TOOL, the tool of ITEM, modifies."
  (concat
   (mapconcat
    (lambda (diff)
      (concat
       "    " (propertize (qwen-companion-daemon-diff-path diff) 'face 'bold)
       (pcase (qwen-companion-daemon-diff-old-size diff)
         ('nil " (new file)")
         (0 " (new file, or an empty one)")
         (_ ""))
       (if-let* ((warning (qwen-companion-risks-run-warning
                           (qwen-companion-daemon-diff-path diff))))
           (concat "  " (propertize warning 'face 'warning))
         "")
       "\n"
       (pcase (qwen-companion-chat-permissions--lines-of item diff)
         ('nil (concat "    " (propertize "The change is being fetched" 'face 'shadow) "\n"))
         ('large (qwen-companion-chat-permissions--see-all-line "The change is long"))
         ('failed (qwen-companion-chat-permissions--see-all-line "The change could not be fetched"))
         ("" (concat "    " (propertize "Nothing changes" 'face 'shadow) "\n"))
         (text (propertize text 'line-prefix "    " 'wrap-prefix "    ")))))
    (qwen-companion-daemon-tool-diffs tool) "")
   (if-let* ((count (qwen-companion-daemon-tool-diffs-more tool)))
       (concat "    "
               (propertize (format "%d more changes, which cannot be shown here" count)
                           'face 'warning)
               "\n")
     "")))

(defun qwen-companion-chat-permissions--message (item)
  "Return the daemon's message about ITEM, or \"\"."
  (if-let* ((message (qwen-companion-daemon-permission-message
                      (qwen-companion-chat-permissions--item-report item))))
      (propertize (concat (qwen-companion-untrusted-text
                           (string-remove-suffix "\n" message) t)
                          "\n")
                  'line-prefix "  " 'wrap-prefix "  " 'face 'warning)
    ""))

(defun qwen-companion-chat-permissions--text (item tool front)
  "Return the text of ITEM, which is about TOOL, a report or nil.
FRONT is non-nil when the keys answer ITEM."
  (let* ((held (qwen-companion-chat-permissions--held-p item))
         (sent (qwen-companion-chat-permissions--item-sent item))
         (active (and front (not held) (not sent)))
         (report (qwen-companion-chat-permissions--item-report item))
         (questions (qwen-companion-daemon-permission-questions report)))
    (concat
     (propertize
      (concat (if questions "Asked: " "Permission: ")
              (qwen-companion-untrusted-text
               (or (qwen-companion-daemon-permission-title report)
                   (qwen-companion-daemon-tool-title tool)
                   "a tool that the daemon did not name")
               t)
              "\n")
      'face 'qwen-companion-chat-permission)
     (qwen-companion-chat-permissions--message item)
     (if questions
         (qwen-companion-chat-permissions--form-text
          questions (qwen-companion-chat-permissions--item-answers item) active)
       (concat (qwen-companion-chat-permissions--input-lines tool)
               (qwen-companion-chat-permissions--diff-lines item tool)))
     (if active (qwen-companion-chat-permissions--review-line tool) "")
     (qwen-companion-chat-permissions--option-lines item active)
     (cond
      (held (propertize "  Held: the connection is lost.  This is checked again after reconnecting.\n"
                        'face 'warning))
      (sent (propertize "  Your answer is being sent.\n" 'face 'shadow))
      (front
       (concat "  " (qwen-companion-chat-permissions--key-text
                     qwen-companion-chat-permissions--dismiss-key)
               "  dismiss without an answer\n"))
      (t (propertize "  Waits until the question above is answered.\n" 'face 'shadow)))
     (if-let* ((problem (qwen-companion-chat-permissions--item-problem item)))
         (propertize (format "  %s\n" (qwen-companion-untrusted-text problem t))
                     'face 'error)
       ""))))

(defun qwen-companion-chat-permissions--closed-text (report)
  "Return the text about the permission in REPORT, which is closed."
  (let ((label (qwen-companion-daemon-permission-label report)))
    (propertize
     (format "%s: %s\n"
             (qwen-companion-untrusted-text
              ;; Some titles end in a colon.
              (string-remove-suffix ":" (or (qwen-companion-daemon-permission-title report)
                                            "Permission"))
              t)
             (pcase (qwen-companion-daemon-permission-by report)
               ('me (if label
                        (format "you answered \"%s\"" (qwen-companion-untrusted-text label t))
                      "you dismissed it"))
               ('other (format "answered by another client%s"
                               (if label
                                   (concat ": \"" (qwen-companion-untrusted-text label t) "\"")
                                 "")))
               ('nobody "closed without an answer")
               (_ (if label
                      (format "closed with \"%s\"" (qwen-companion-untrusted-text label t))
                    "closed; the answer is unknown here"))))
     'face 'shadow)))

;;; In the conversation

(defvar qwen-companion-chat-answer-map
  (let ((map (make-sparse-keymap)))
    (dolist (key (append (mapcar #'cdr qwen-companion-chat-permissions--keys)
                         (list qwen-companion-chat-permissions--dismiss-key)
                         (number-sequence ?1 ?9)))
      (define-key map (vector key) #'qwen-companion-chat-answer-with-key))
    (define-key map (kbd "C-a") #'qwen-companion-chat-answer)
    map)
  "Keymap of the answers to a question.
It is active at the question, and after a prefix anywhere in the chat.")

(defvar qwen-companion-chat-permissions-map
  (let ((map (make-sparse-keymap)))
    (set-keymap-parent map (make-composed-keymap qwen-companion-chat-answer-map
                                                 qwen-companion-chat-conversation-map))
    (define-key map (kbd "RET") #'qwen-companion-chat-permissions-choose)
    (define-key map [mouse-2] #'qwen-companion-header-click)
    (define-key map [follow-link] 'mouse-face)
    map)
  "Keymap of a question.")

(defun qwen-companion-chat-permissions--draw (item)
  "Show the current state of ITEM in the conversation."
  (let ((tool (qwen-companion-chat-permissions--tool item)))
    (qwen-companion-chat-permissions--put
     (qwen-companion-chat-permissions--item-report item)
     (propertize (qwen-companion-chat-permissions--text
                  item tool (eq item (car qwen-companion-chat-permissions--items)))
                 'qwen-companion-chat-permission (qwen-companion-chat-permissions--id item)
                 'keymap qwen-companion-chat-permissions-map))))

(defun qwen-companion-chat-permissions--put (report text)
  "Insert TEXT about the permission in REPORT after its tool."
  (qwen-companion-chat-blocks-add
   (list :turn (qwen-companion-daemon-permission-turn report)
         :parent (qwen-companion-daemon-tool-parent
                  (qwen-companion-chat-tools-get
                   (qwen-companion-daemon-permission-tool report))))
   (list 'permission (qwen-companion-daemon-permission-permission report))
   text))

(defun qwen-companion-chat-permissions--tool (item)
  "Return the report of the tool of ITEM, or nil."
  (when-let* ((tool (qwen-companion-daemon-permission-tool
                     (qwen-companion-chat-permissions--item-report item))))
    (qwen-companion-chat-tools-get tool)))

(defun qwen-companion-chat-permissions-on-permission (report)
  "Handle REPORT of a permission or a form of the current chat."
  (let* ((id (qwen-companion-daemon-permission-permission report))
         (item (qwen-companion-chat-permissions--find id)))
    (cond
     ((eq 'closed (qwen-companion-daemon-permission-state report))
      (when item
        (qwen-companion-chat-permissions--close item report)))
     (item
      (when-let* ((plan (qwen-companion-daemon-permission-plan report)))
        (qwen-companion-spool-drop plan))
      (setf (qwen-companion-chat-permissions--item-report item) report
            ;; An answer that was being sent has been lost.
            (qwen-companion-chat-permissions--item-sent item) nil)
      (qwen-companion-chat-permissions--draw item))
     (t
      (setq item (qwen-companion-chat-permissions--make
                  :report report
                  :answers (make-list
                            (length (qwen-companion-daemon-permission-questions report))
                            nil))
            qwen-companion-chat-permissions--items
            (append qwen-companion-chat-permissions--items (list item)))
      (qwen-companion-chat-permissions--fetch-changes item)
      (qwen-companion-chat-permissions--propose-plan item)))
    ;; The keys answer the oldest question.
    (when-let* ((front (car qwen-companion-chat-permissions--items)))
      (unless (qwen-companion-chat-permissions--item-since front)
        (setf (qwen-companion-chat-permissions--item-since front) (float-time))
        (qwen-companion-chat-permissions--draw front))))
  (qwen-companion-chat-permissions--update-waiting)
  nil)

(defun qwen-companion-chat-permissions--propose-plan (item)
  "If ITEM is about a plan, show it as a proposal, like the plan of a CLI."
  (when-let* ((report (qwen-companion-chat-permissions--item-report item))
              (plan (qwen-companion-daemon-permission-plan report))
              (id (qwen-companion-chat-permissions--id item)))
    (if (or (not qwen-companion-show-questions)
            ;; After the session was loaded again.
            (qwen-companion-proposal-by-id id)
            (> (qwen-companion-spool-size plan) qwen-companion-diff-size-limit))
        (qwen-companion-spool-drop plan)
      (qwen-companion-chat-review-begin
       id (qwen-companion-daemon-permission-tool report)
       (qwen-companion-daemon-offered-plan-path plan) (qwen-companion-spool-text plan)
       #'qwen-companion-chat-permissions--reviewed t))))

(defun qwen-companion-chat-permissions-on-tool (tool)
  "Update the questions about TOOL, which was just reported.
If its revision has changed, the user has to see it again."
  (qwen-companion-chat-review-on-tool tool)
  (dolist (item qwen-companion-chat-permissions--items)
    (when (and (equal (qwen-companion-daemon-tool-id tool)
                      (qwen-companion-daemon-permission-tool
                       (qwen-companion-chat-permissions--item-report item)))
               (not (eql (qwen-companion-daemon-tool-revision tool)
                         (qwen-companion-chat-permissions--item-revision item))))
      (when (qwen-companion-chat-permissions--item-since item)
        (setf (qwen-companion-chat-permissions--item-since item) (float-time)))
      (qwen-companion-chat-review-close (qwen-companion-chat-permissions--id item)
                                        "the edit has changed since it was shown")
      (qwen-companion-chat-permissions--fetch-changes item))))

(defun qwen-companion-chat-permissions--close (item report)
  "Remove ITEM, and show that REPORT has closed it."
  (setq qwen-companion-chat-permissions--items
        (delq item qwen-companion-chat-permissions--items))
  (qwen-companion-chat-permissions--close-review
   (qwen-companion-chat-permissions--id item) (qwen-companion-daemon-permission-by report))
  (qwen-companion-chat-permissions--put
   report (concat (qwen-companion-chat-permissions--closed-text report)
                  (if (qwen-companion-chat-permissions--allowed-p item report)
                      (qwen-companion-chat-permissions--allowed-changes item)
                    ""))))

(defun qwen-companion-chat-permissions--close-review (id by)
  "Close the review of the permission ID, answered by BY.
If others were faster, the user's answer in the review is void."
  (let ((reason (pcase by
                  ('other "another client has answered before you")
                  ('nobody "the turn has ended before it was answered")
                  (_ "the question was answered in the chat"))))
    (qwen-companion-chat-review-close id reason)
    (when (memq by '(other nobody))
      (qwen-companion-chat-review-void id reason))))

(defun qwen-companion-chat-permissions--allowed-p (item report)
  "Return non-nil when REPORT has closed ITEM and the tool may run."
  (when-let* ((label (qwen-companion-daemon-permission-label report)))
    (qwen-companion-daemon-option-allows
     (cl-find label (qwen-companion-daemon-permission-options
                     (qwen-companion-chat-permissions--item-report item))
              :key #'qwen-companion-daemon-option-label :test #'equal))))

(defun qwen-companion-chat-permissions--allowed-changes (item)
  "Return lines about each change that ITEM has allowed, or \"\"."
  (mapconcat
   (lambda (diff)
     (let ((lines (qwen-companion-chat-permissions--lines-of item diff)))
       (if (stringp lines)
           (concat "    " (propertize (qwen-companion-daemon-diff-path diff) 'face 'bold)
                   (qwen-companion-chat-tools-line-counts lines) "\n"
                   (propertize lines 'line-prefix "    " 'wrap-prefix "    "))
         "")))
   (qwen-companion-daemon-tool-diffs (qwen-companion-chat-permissions--tool item))
   ""))

(defun qwen-companion-chat-permissions-redraw ()
  "Show all questions again, after the state of the session has changed."
  (mapc #'qwen-companion-chat-permissions--draw qwen-companion-chat-permissions--items))

(defun qwen-companion-chat-permissions-forget ()
  "Forget all questions of the current chat."
  (setq qwen-companion-chat-permissions--items nil)
  (qwen-companion-chat-permissions--update-waiting))

;;; Showing everything

(defun qwen-companion-chat-permissions--fetch-changes (item)
  "Show ITEM, then fetch each file change of its tool and show it, too."
  (let* ((tool (qwen-companion-chat-permissions--tool item))
         (revision (qwen-companion-daemon-tool-revision tool)))
    (setf (qwen-companion-chat-permissions--item-revision item) revision
          (qwen-companion-chat-permissions--item-diffs item) nil
          (qwen-companion-chat-permissions--item-seen item) nil)
    (qwen-companion-chat-permissions--draw item)
    (dolist (diff (qwen-companion-daemon-tool-diffs tool))
      (qwen-companion-chat-tools-change-lines
       tool diff
       (lambda (lines)
         (when (qwen-companion-chat-permissions--current-p item revision)
           (setf (alist-get (qwen-companion-daemon-diff-index diff)
                            (qwen-companion-chat-permissions--item-diffs item))
                 lines)
           (qwen-companion-chat-permissions--draw item)))))))

(defun qwen-companion-chat-permissions--unseen-reason (item)
  "Return the reason why ITEM cannot be allowed yet, a string, or nil.
The user has to see everything that is to be allowed."
  (unless (qwen-companion-chat-permissions--item-seen item)
    (let ((tool (qwen-companion-chat-permissions--tool item)))
      (cond
       ((qwen-companion-daemon-permission-questions
         (qwen-companion-chat-permissions--item-report item))
        nil)
       ((cdr (qwen-companion-chat-permissions--input tool))
        "the tool's input is cut off here")
       ((cl-notevery
         (lambda (diff)
           (stringp (qwen-companion-chat-permissions--lines-of item diff)))
         (qwen-companion-daemon-tool-diffs tool))
        "the change is not shown here")))))

(defun qwen-companion-chat-show-change ()
  "Show everything about the question at point, else about the oldest.
Show a plan, or the change of a single file of this machine, as a review:
answer it there, and edit it before if you like.  Otherwise show the input
of the tool and its changes of files, these in the front end in
`qwen-companion-diff-style'."
  (interactive nil qwen-companion-chat-mode)
  (let* ((item (qwen-companion-chat-permissions--item-here))
         (tool (qwen-companion-chat-permissions--tool item)))
    (unless (or (qwen-companion-daemon-tool-diffs tool)
                (qwen-companion-chat-permissions--input tool))
      (user-error "Nothing more to show"))
    (if-let* ((plan (qwen-companion-proposal-by-id
                     (qwen-companion-chat-permissions--id item)))
              ((qwen-companion-proposal-chat plan)))
        (progn (setf (qwen-companion-chat-permissions--item-seen item) t)
               (qwen-companion-diff-open plan))
      (if-let* ((diff (qwen-companion-chat-permissions--reviewable tool)))
          (qwen-companion-chat-permissions--review item tool diff)
        (qwen-companion-chat-permissions--show-all item tool)))))

(defun qwen-companion-chat-permissions--reviewable (tool)
  "Return the change of a file by TOOL if it can be reviewed, or nil.
The file must be on this machine, and the change must be the whole
request."
  (let ((diffs (qwen-companion-daemon-tool-diffs tool)))
    (and (qwen-companion-daemon-local-p)
         (= 1 (length diffs))
         (not (qwen-companion-daemon-tool-diffs-more tool))
         (not (qwen-companion-daemon-tool-command tool))
         (qwen-companion-chat-places-writable-p (qwen-companion-daemon-diff-path (car diffs)))
         (car diffs))))

(defun qwen-companion-chat-permissions--review (item tool diff)
  "Review DIFF, the only change by TOOL, the tool of ITEM.
If its old text is not that of the file, the daemon has sent a part of the
text: only show it."
  (let ((path (qwen-companion-daemon-diff-path diff))
        (revision (qwen-companion-chat-permissions--item-revision item)))
    (qwen-companion-chat-tools-fetch-sides
     tool diff
     (lambda (old new)
       (when (and new (qwen-companion-chat-permissions--current-p item revision))
         (if (not (qwen-companion-disk-holds-p path old))
             (qwen-companion-chat-permissions--show-all item tool)
           (setf (qwen-companion-chat-permissions--item-seen item) t)
           (save-current-buffer
             (qwen-companion-chat-review-open
              (qwen-companion-chat-permissions--id item)
              (qwen-companion-daemon-tool-id tool) path new
              #'qwen-companion-chat-permissions--reviewed))))))))

(defun qwen-companion-chat-permissions--reviewed (proposal allowed text)
  "Answer the permission of PROPOSAL with the user's decision in its review.
ALLOWED says whether the tool may run.  TEXT is the user's version of its
change or plan, nil if they did not edit it."
  (let* ((item (or (qwen-companion-chat-permissions--find (qwen-companion-proposal-id proposal))
                   (user-error "This question is no longer open; nothing was answered")))
         (options (qwen-companion-daemon-permission-options
                   (qwen-companion-chat-permissions--item-report item)))
         (mode (and allowed
                    (qwen-companion-proposal-chat proposal)
                    (or (qwen-companion-proposal-mode proposal) 'before))))
    (when mode
      ;; All of it is in the buffer in which it was approved.
      (setf (qwen-companion-chat-permissions--item-seen item) t))
    (qwen-companion-chat-permissions--answer
     item
     (or (and mode (cl-find mode options :key #'qwen-companion-daemon-option-mode))
         (cl-find (if allowed 'once 'no) options :key #'qwen-companion-chat-permissions--effect)
         (and allowed
              (user-error "No \"allow once\" for this; choose an answer in the chat")))
     (qwen-companion-proposal-reason proposal) text t)))

(defun qwen-companion-chat-permissions--show-all (item tool)
  "Show the input of TOOL, the tool of ITEM, and each file change of it."
  (let* ((diffs (qwen-companion-daemon-tool-diffs tool))
         (revision (qwen-companion-daemon-tool-revision tool))
         (note (lambda (shown)
                 (when (and shown (eql revision
                                       (qwen-companion-chat-permissions--item-revision item)))
                   (setf (qwen-companion-chat-permissions--item-seen item) t))))
         (show-diffs (lambda (shown)
                       (if (and shown diffs)
                           (qwen-companion-chat-tools-show-changes tool diffs note)
                         (funcall note shown)))))
    (if (qwen-companion-chat-permissions--input tool)
        (qwen-companion-chat-tools-show-whole
         (qwen-companion-daemon-tool-id tool) 'input
         (or (qwen-companion-chat-tools-title tool) "a tool") show-diffs)
      (funcall show-diffs t))))

;;; Answering

(defun qwen-companion-chat-permissions--item-here ()
  "Return the question at point, else the oldest of this chat.
Signal a `user-error' when there is none."
  (or (qwen-companion-chat-permissions--find
       (get-text-property (point) 'qwen-companion-chat-permission))
      (car qwen-companion-chat-permissions--items)
      (user-error "Nothing waits for an answer in this chat")))

(defun qwen-companion-chat-permissions--check (item)
  "Signal a `user-error' with the reason when ITEM cannot be answered now."
  (cond
   ((qwen-companion-chat-permissions--held-p item)
    (user-error "The connection to the daemon is lost; this is checked again after reconnecting"))
   ((qwen-companion-chat-permissions--item-sent item)
    (user-error "Your answer is being sent"))
   ((not (eq item (car qwen-companion-chat-permissions--items)))
    (user-error "An older question waits; answer that first"))
   ((let ((age (- (float-time)
                  (qwen-companion-chat-permissions--item-since item))))
      ;; AGE is negative when the clock was set back.
      (and (<= 0 age) (< age qwen-companion-chat-permissions--key-delay)))
    (user-error "This question has only just come up; read it before you answer"))))

(defun qwen-companion-chat-permissions--check-allowed (item)
  "Signal a `user-error' with the reason when ITEM must not be allowed."
  (when (qwen-companion-daemon-tool-diffs-more (qwen-companion-chat-permissions--tool item))
    (user-error "Some of the changes cannot be shown here; this can only be rejected"))
  (when-let* ((reason (qwen-companion-chat-permissions--unseen-reason item)))
    (user-error "Not allowed yet: %s; %s shows it" reason
                (substitute-command-keys
                 "\\<qwen-companion-chat-mode-map>\\[qwen-companion-chat-show-change]")))
  (when-let* ((open (cl-position nil (qwen-companion-chat-permissions--item-answers item))))
    (user-error "Question %d has no answer yet; choose one with RET" (1+ open))))

(defun qwen-companion-chat-permissions--answer (item option &optional reason text reviewed)
  "Answer ITEM with OPTION; nil dismisses it.
REASON is for the model, nil for none.  TEXT is the user's version of the
change or the plan in its review, nil if there is none.  REVIEWED means
that the answer was given in the review."
  (qwen-companion-chat-permissions--check item)
  (when (and (qwen-companion-daemon-option-allows option)
             (not reviewed)
             (qwen-companion-chat-review-edited-p (qwen-companion-chat-permissions--id item)))
    (user-error "You have edited this in its review; answer it there"))
  (let ((questions (qwen-companion-daemon-permission-questions
                    (qwen-companion-chat-permissions--item-report item)))
        (answers (qwen-companion-chat-permissions--item-answers item))
        (allows (qwen-companion-daemon-option-allows option)))
    (when allows
      (qwen-companion-chat-permissions--check-allowed item))
    (setf (qwen-companion-chat-permissions--item-sent item) t
          (qwen-companion-chat-permissions--item-problem item) nil)
    (qwen-companion-chat-permissions--draw item)
    (qwen-companion-chat-call
     'daemon-answer
     (append
      (list :session qwen-companion-chat-session-id
            :permission (qwen-companion-chat-permissions--id item)
            :option (qwen-companion-daemon-option-id option)
            :revision (qwen-companion-chat-permissions--item-revision item)
            :answers (and allows questions answers))
      (and allows reason (list :comments (qwen-companion-spool-pack reason)))
      (and text (qwen-companion-spool-pack text)))
     (lambda (reply)
       (if-let* ((error (qwen-companion-daemon-reply-error reply)))
           (progn
             (qwen-companion-chat-review-void
              (qwen-companion-chat-permissions--id item)
              (concat "your answer was not accepted: " error))
             (when (memq item qwen-companion-chat-permissions--items)
               (setf (qwen-companion-chat-permissions--item-sent item) nil
                     (qwen-companion-chat-permissions--item-problem item)
                     (concat "Your answer was not accepted: " error))
               (qwen-companion-chat-permissions--draw item)))
         ;; The daemon's answer cannot contain it; the model reads the prompt
         ;; next.
         (when (and reason (not allows))
           (qwen-companion-chat-send-text reason)))))))

(defun qwen-companion-chat-permissions--choose-option (item option)
  "Answer ITEM with OPTION, after asking for a reason or consent it needs.
A rejection may have a reason; an effect that outlives the session needs
consent."
  (qwen-companion-chat-permissions--check item)
  (let ((revision (qwen-companion-chat-permissions--item-revision item))
        (effect (qwen-companion-chat-permissions--effect option))
        reason)
    (when (qwen-companion-daemon-option-allows option)
      (qwen-companion-chat-permissions--check-allowed item))
    (cond
     ((memq effect '(project user unknown))
      (unless (y-or-n-p (qwen-companion-chat-permissions--consent-prompt option effect))
        (user-error "Cancelled; the question is still open")))
     ((and (eq effect 'no)
           (not (qwen-companion-daemon-permission-questions
                 (qwen-companion-chat-permissions--item-report item))))
      (setq reason (qwen-companion-chat-permissions--read-reason item))))
    (unless (qwen-companion-chat-permissions--current-p item revision)
      (user-error "The question has changed meanwhile; read it again"))
    (qwen-companion-chat-permissions--answer item option reason)))

(defun qwen-companion-chat-permissions--consent-prompt (option effect)
  "Return the text of the question whether to choose OPTION with EFFECT."
  (format "%s: %s%s? "
          (qwen-companion-untrusted-line (qwen-companion-daemon-option-label option))
          (pcase effect
            ('project (format "write this rule into %s/.qwen/settings.json"
                              (qwen-companion-untrusted-path (qwen-companion-daemon-workspace))))
            ('user "write this rule into ~/.qwen/settings.json")
            (_ "its effect is unknown; choose it"))
          (if (qwen-companion-daemon-local-p) "" " on the daemon's host")))

(defun qwen-companion-chat-permissions--read-reason (item)
  "Read the reason of a rejection of ITEM for the model; return nil for none."
  (let ((reason (qwen-companion-chat-permissions--read-words
                 item "No.  Reason for the model (RET for none): ")))
    (and (not (string-empty-p reason)) reason)))

(defun qwen-companion-chat-permissions--read-words (item prompt &optional initial)
  "Return the text that the user types after PROMPT about ITEM, trimmed.
INITIAL is the initial input.  Signal a `user-error' if ITEM has ended
meanwhile."
  (string-trim
   (qwen-companion-completion-read-words
    (lambda () (read-string prompt initial))
    (lambda () (memq item qwen-companion-chat-permissions--items)))))

(defun qwen-companion-chat-permissions--read (item)
  "Read an option of ITEM by its name and return it, nil to dismiss ITEM."
  (let* ((report (qwen-companion-chat-permissions--item-report item))
         (choices (append
                   (mapcar (pcase-lambda (`(,key . ,option))
                             (cons (substring-no-properties
                                    (format "%s%s%s" (if key (format "%c " key) "")
                                            (qwen-companion-untrusted-line
                                             (qwen-companion-daemon-option-label option))
                                            (qwen-companion-chat-permissions--option-text option)))
                                   option))
                           (qwen-companion-chat-permissions--options item))
                   (list (list (format "%c dismiss without an answer"
                                       qwen-companion-chat-permissions--dismiss-key))))))
    (qwen-companion-completion-read
     (format "%s: " (qwen-companion-untrusted-line
                     (qwen-companion-untrusted-cut
                      (or (qwen-companion-daemon-permission-title report) "Answer"))))
     choices nil)))

;;;###autoload
(defun qwen-companion-chat-answer ()
  "Answer the question at point, else the oldest in this chat.
Choose the answer by its name.  Outside of a chat, go to the question that
has waited longest."
  (interactive)
  (if (not (derived-mode-p 'qwen-companion-chat-mode))
      (qwen-companion-chat-permissions-visit)
    (let ((item (qwen-companion-chat-permissions--item-here)))
      (qwen-companion-chat-permissions--check item)
      (if-let* ((option (qwen-companion-chat-permissions--read item)))
          (qwen-companion-chat-permissions--choose-option item option)
        (qwen-companion-chat-permissions--answer item nil)))))

(defun qwen-companion-chat-answer-with-key ()
  "Answer the question at point, else the oldest, with the typed key.
\\<qwen-companion-chat-answer-map>\
y allows this once, n rejects it and asks for a reason for the model, !
allows for the rest of the session, W and U write a rule for the
workspace or the user and ask before, and d dismisses the question.
Other answers have digits."
  (interactive nil qwen-companion-chat-mode)
  (let ((item (qwen-companion-chat-permissions--item-here)))
    (if (eq last-command-event qwen-companion-chat-permissions--dismiss-key)
        (qwen-companion-chat-permissions--answer item nil)
      (qwen-companion-chat-permissions--choose-option
       item (or (alist-get last-command-event (qwen-companion-chat-permissions--options item))
                (user-error "This question has no answer with the key %c"
                            last-command-event))))))

(defun qwen-companion-chat-permissions-choose ()
  "Choose the option or the answer on this line."
  (interactive nil qwen-companion-chat-mode)
  (let ((item (qwen-companion-chat-permissions--item-here)))
    (if-let* ((id (get-text-property (point) 'qwen-companion-chat-option)))
        (qwen-companion-chat-permissions--choose-option
         item (cl-find id (qwen-companion-daemon-permission-options
                           (qwen-companion-chat-permissions--item-report item))
                       :key #'qwen-companion-daemon-option-id :test #'equal))
      (pcase (get-text-property (point) 'qwen-companion-chat-choice)
        (`(,number . ,answer)
         (qwen-companion-chat-permissions--choose item number answer))
        (_ (qwen-companion-chat-permissions--check item)
           (user-error "Nothing to choose on this line"))))))

(defun qwen-companion-chat-permissions--choose (item number answer)
  "Choose ANSWER to the question NUMBER, from 0, of ITEM; nil asks for one."
  (let ((question (nth number (qwen-companion-daemon-permission-questions
                               (qwen-companion-chat-permissions--item-report item))))
        (chosen (nth number (qwen-companion-chat-permissions--item-answers item))))
    (setf (nth number (qwen-companion-chat-permissions--item-answers item))
          (qwen-companion-chat-permissions--form-choose item question chosen answer))
    (qwen-companion-chat-permissions--draw item)))

;;; All chats

(defvar qwen-companion-chat-permissions--waiting-chats nil
  "Buffers of the chats with questions, the longest waiting first.")

(defun qwen-companion-chat-permissions--update-waiting ()
  "Add the current chat to the waiting ones, or remove it from them."
  (if (not qwen-companion-chat-permissions--items)
      (setq qwen-companion-chat-permissions--waiting-chats
            (delq (current-buffer) qwen-companion-chat-permissions--waiting-chats))
    (unless (memq (current-buffer) qwen-companion-chat-permissions--waiting-chats)
      (setq qwen-companion-chat-permissions--waiting-chats
            (append qwen-companion-chat-permissions--waiting-chats (list (current-buffer))))))
  (force-mode-line-update t))

(defun qwen-companion-chat-permissions-waiting-chats ()
  "Return the live chats with questions, the longest waiting first."
  (setq qwen-companion-chat-permissions--waiting-chats
        (cl-delete-if-not #'buffer-live-p qwen-companion-chat-permissions--waiting-chats)))

(defun qwen-companion-chat-permissions-lighter ()
  "Return the part of the mode line about questions, \"\" for none."
  (let ((count (cl-loop for chat in (qwen-companion-chat-permissions-waiting-chats)
                        sum (length (buffer-local-value
                                     'qwen-companion-chat-permissions--items chat)))))
    (if (zerop count)
        ""
      (propertize (format " Asks:%d" count)
                  'face 'warning
                  'help-echo "A tool waits for your answer; M-x qwen-companion-chat-answer goes there"))))

(defun qwen-companion-chat-permissions-visit (&optional chat)
  "Go to the question of CHAT, by default the one that has waited longest.
From a chat with a question, go to the next chat with one."
  (let* ((chats (qwen-companion-chat-permissions-waiting-chats))
         (chat (or chat
                   (cadr (memq (current-buffer) chats))
                   (car chats)
                   (user-error "Nothing waits for an answer in any chat")))
         (id (qwen-companion-chat-permissions--id
              (car (buffer-local-value 'qwen-companion-chat-permissions--items chat)))))
    (pop-to-buffer chat)
    (goto-char (point-min))
    (when-let* ((match (text-property-search-forward
                        'qwen-companion-chat-permission id t)))
      (goto-char (prop-match-beginning match)))))

;;; Forms

(defun qwen-companion-chat-permissions--form-own-answers (question chosen)
  "Return the answers in CHOSEN that QUESTION does not offer."
  (cl-set-difference chosen (mapcar #'qwen-companion-daemon-answer-label
                                    (qwen-companion-daemon-question-choices question))
                     :test #'equal))

(defun qwen-companion-chat-permissions--form-text (questions answers active)
  "Return the text of QUESTIONS with their ANSWERS.
With ACTIVE non-nil, each answer has the property
`qwen-companion-chat-choice': the number of the question and the label
of the answer, nil for an answer of the user's own."
  (let ((number -1))
    (mapconcat (lambda (question)
                 (cl-incf number)
                 (qwen-companion-chat-permissions--form-question
                  number question (nth number answers) active))
               questions "")))

(defun qwen-companion-chat-permissions--form-question (number question chosen active)
  "Return the text of QUESTION with NUMBER, with its CHOSEN answers marked.
ACTIVE is as for `qwen-companion-chat-permissions--form-text'."
  (let* ((multiple (qwen-companion-daemon-question-multiple question))
         (own (qwen-companion-chat-permissions--form-own-answers question chosen))
         (line (lambda (answer on text)
                 (let ((line (concat "    " (format (if multiple "[%s]" "(%s)") (if on "x" " "))
                                     " " text "\n")))
                   (if active
                       (propertize line
                                   'qwen-companion-chat-choice (cons number answer)
                                   'mouse-face 'highlight)
                     line)))))
    (concat
     "  " (if-let* ((header (qwen-companion-daemon-question-header question)))
              (concat (propertize (qwen-companion-untrusted-text header t) 'face 'bold) ": ")
            "")
     (qwen-companion-untrusted-text (qwen-companion-daemon-question-text question) t)
     (propertize (if multiple "  (one or more)" "") 'face 'shadow)
     "\n"
     (mapconcat
      (lambda (choice)
        (let ((label (qwen-companion-daemon-answer-label choice))
              (description (qwen-companion-daemon-answer-description choice)))
          (funcall line label (member label chosen)
                   (concat (qwen-companion-untrusted-line label)
                           (if description
                               (propertize
                                (concat "  " (qwen-companion-untrusted-line description))
                                'face 'shadow)
                             "")))))
      (qwen-companion-daemon-question-choices question) "")
     (funcall line nil own
              (if own
                  (mapconcat #'qwen-companion-untrusted-line own ", ")
                "an answer of your own")))))

(defun qwen-companion-chat-permissions--form-choose (item question chosen answer)
  "Return the new answers to QUESTION of ITEM after choosing ANSWER.
CHOSEN are the old ones.  With ANSWER nil, ask the user for one."
  (let* ((own (qwen-companion-chat-permissions--form-own-answers question chosen))
         (added (cond (answer (list answer))
                      ((let ((text (qwen-companion-chat-permissions--read-words
                                    item "Your answer: " (car own))))
                         (and (not (string-empty-p text)) (list text)))))))
    (cond ((not (qwen-companion-daemon-question-multiple question)) added)
          ((not answer) (append (cl-set-difference chosen own :test #'equal) added))
          ((member answer chosen) (remove answer chosen))
          (t (append chosen added)))))

(provide 'qwen-companion-chat-permissions)
;;; qwen-companion-chat-permissions.el ends here
