;;; qwen-companion-chat-permissions.el --- What a chat waits for the user for  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; A tool waits for the user: for a permission, or for the answers to a
;; form.  It is asked in the conversation and counted in the mode line, and
;; never by a minibuffer that appears by itself.  The options are those that
;; the daemon offers; each has a number, which is its key.
;;
;; What is allowed has to be on the screen before: what the tool is given,
;; and how a file would change.  What is too long for the conversation is
;; shown whole in a buffer of its own, and nothing is allowed until it was.
;;
;; A key must never answer what the user has not read: the keys go to the
;; oldest question, and one that has just come to the front refuses them.
;;
;; A form has questions with answers to choose from, of which one or several
;; can be chosen, or with an answer of the user's own.  QUESTIONS are property
;; lists as they are told with `daemon-permission'; ANSWERS has for each of
;; them the list of what was chosen.  Questions are counted from 0.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'text-property-search)
(require 'qwen-companion-chat-blocks)
(require 'qwen-companion-chat-state)
(require 'qwen-companion-chat-tools)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-risks)
(require 'qwen-companion-untrusted)

(defface qwen-companion-chat-permission
  '((t :inherit warning))
  "Face of the title of what waits for the user."
  :group 'qwen-companion)

(defface qwen-companion-chat-permission-input
  '((t :inherit font-lock-string-face))
  "Face of the input of a tool that asks for permission."
  :group 'qwen-companion)

(defface qwen-companion-chat-permission-writes
  '((t :inherit warning :weight normal))
  "Face of what an option leaves behind."
  :group 'qwen-companion)

(defface qwen-companion-chat-permission-key
  '((t :inherit help-key-binding))
  "Face of the key of an option."
  :group 'qwen-companion)

(defconst qwen-companion-chat-permissions--settle 0.7
  "Seconds for which a question that has come to the front takes no key.")

(cl-defstruct (qwen-companion-chat-permissions--item
               (:constructor qwen-companion-chat-permissions--make)
               (:copier nil))
  "Something that waits for the user.
REPORT is how the Python process told it last.  SINCE is when the keys
came to mean this one, in seconds since the epoch, nil while they do not.
ANSWERS has for each question of a form the list of its answers.
REVISION is that of the tool that is shown; of that one are DIFFS, an
alist of the numbers of the changes and their texts: a string, `large',
or `failed'; and SEEN, non-nil when all there is was shown in a buffer of
its own.  SENT is non-nil while an answer is under way, PROBLEM why the
one before it has failed."
  report since answers revision diffs seen sent problem)

(defvar-local qwen-companion-chat-permissions--items nil
  "What waits for the user in this chat, oldest first.")

(defun qwen-companion-chat-permissions--id (item)
  "Return the name of ITEM."
  (qwen-companion-daemon-permission-permission
   (qwen-companion-chat-permissions--item-report item)))

(defun qwen-companion-chat-permissions--find (id)
  "Return what waits by the name ID in this chat, or nil."
  (cl-find id qwen-companion-chat-permissions--items :test #'equal
           :key #'qwen-companion-chat-permissions--id))

(defun qwen-companion-chat-permissions--held-p (item)
  "Return non-nil when there is no connection over which to answer ITEM."
  (or (eq 'held (qwen-companion-daemon-permission-state
                 (qwen-companion-chat-permissions--item-report item)))
      (memq (qwen-companion-daemon-session-state qwen-companion-chat-session)
            '(disconnected closed dead off))))

;;; In words

(defun qwen-companion-chat-permissions--writes (option)
  "Return for the line of OPTION what is left behind by it, or \"\"."
  (if-let* ((text (pcase (qwen-companion-daemon-option-writes option)
                    ('project "writes a rule into the settings of the workspace on the daemon's host")
                    ('user "writes a rule into the user's settings on the daemon's host")
                    ('unknown (if (qwen-companion-daemon-option-lasting option)
                                  "lasting; what it writes on the daemon's host is not known"
                                "an unknown kind of option; it may allow more than this once"))
                    (_ (and (qwen-companion-daemon-option-lasting option)
                            "holds for the rest of this session")))))
      (propertize (concat "  " text) 'face 'qwen-companion-chat-permission-writes)
    ""))

(defun qwen-companion-chat-permissions--key (key)
  "Return KEY as it is shown beside what it does."
  (propertize key 'face 'qwen-companion-chat-permission-key))

(defun qwen-companion-chat-permissions--option-lines (item active)
  "Return the options of ITEM, a line each; with ACTIVE, with their keys."
  (let ((number 0))
    (mapconcat
     (lambda (option)
       (cl-incf number)
       (let ((line (concat "  "
                           (if active
                               (qwen-companion-chat-permissions--key
                                (if (< number 10) (format "C-c %d" number) "RET"))
                             "     ")
                           "  "
                           (qwen-companion-untrusted-line
                            (qwen-companion-daemon-option-label option))
                           (qwen-companion-chat-permissions--writes option)
                           "\n")))
         (put-text-property 0 (length line) 'wrap-prefix (make-string 9 ?\s) line)
         (if active
             (propertize line
                         'qwen-companion-chat-option number
                         'mouse-face 'highlight)
           line)))
     (qwen-companion-daemon-permission-options
      (qwen-companion-chat-permissions--item-report item))
     "")))

(defun qwen-companion-chat-permissions--given (tool)
  "Return what TOOL was given, as it may be shown: (TEXT . MORE) or nil.
MORE is the number of characters that are left out, or nil.  For a tool
that changes files it is the change that counts, and what it runs."
  (cond ((and (qwen-companion-daemon-tool-input tool)
              (or (qwen-companion-daemon-tool-command tool)
                  (not (qwen-companion-daemon-tool-diffs tool))))
         (cons (qwen-companion-daemon-tool-input tool)
               (qwen-companion-daemon-tool-input-more tool)))
        ((qwen-companion-daemon-tool-command tool)
         (cons (qwen-companion-daemon-tool-command tool)
               (qwen-companion-daemon-tool-command-more tool)))))

(defun qwen-companion-chat-permissions--given-lines (tool)
  "Return what TOOL was given, indented, or the empty string."
  (pcase (qwen-companion-chat-permissions--given tool)
    (`(,text . ,more)
     (concat
      (propertize (concat (qwen-companion-untrusted-text
                           (string-remove-suffix "\n" text) t)
                          "\n")
                  'line-prefix "    " 'wrap-prefix "    "
                  'face 'qwen-companion-chat-permission-input)
      (if more
          (qwen-companion-chat-permissions--rest
           (format "%d characters more" more))
        "")))
    (_ "")))

(defun qwen-companion-chat-permissions--rest (text)
  "Return a line with TEXT and how to see all."
  (concat "    " (propertize text 'face 'warning) "  "
          (qwen-companion-chat-permissions--key "C-c C-v") " shows all\n"))

(defun qwen-companion-chat-permissions--diff-lines (item tool)
  "Return the lines about what TOOL, of ITEM, does to files."
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
       (pcase (alist-get (qwen-companion-daemon-diff-index diff)
                         (qwen-companion-chat-permissions--item-diffs item))
         ('nil (concat "    " (propertize "The change is being fetched" 'face 'shadow) "\n"))
         ('large (qwen-companion-chat-permissions--rest "The change is long"))
         ('failed (qwen-companion-chat-permissions--rest "The change could not be fetched"))
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
  "Return the daemon's words to the question of ITEM, or the empty string."
  (if-let* ((message (qwen-companion-daemon-permission-message
                      (qwen-companion-chat-permissions--item-report item))))
      (propertize (concat (qwen-companion-untrusted-text
                           (string-remove-suffix "\n" message) t)
                          "\n")
                  'line-prefix "  " 'wrap-prefix "  " 'face 'warning)
    ""))

(defun qwen-companion-chat-permissions--text (item tool front)
  "Return the text of the block about ITEM, which is about TOOL.
That is its plist, or nil.  FRONT is non-nil when the keys are for ITEM."
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
       (concat (qwen-companion-chat-permissions--given-lines tool)
               (qwen-companion-chat-permissions--diff-lines item tool)))
     (qwen-companion-chat-permissions--option-lines item active)
     (cond
      (held (propertize "  Held: the connection is lost.  This is checked again after reconnecting.\n"
                        'face 'warning))
      (sent (propertize "  Your answer is being sent.\n" 'face 'shadow))
      (front
       (concat "  " (qwen-companion-chat-permissions--key "C-c 0") "  dismiss without an answer\n"))
      (t (propertize "  Waits until the question above is answered.\n" 'face 'shadow)))
     (if-let* ((problem (qwen-companion-chat-permissions--item-problem item)))
         (propertize (format "  %s\n" (qwen-companion-untrusted-text problem t))
                     'face 'error)
       ""))))

(defun qwen-companion-chat-permissions--closed-text (report)
  "Return the text about a permission that REPORT, the last, closed."
  (let ((label (qwen-companion-daemon-permission-label report)))
    (propertize
     (format "%s: %s\n"
             (qwen-companion-untrusted-text
              ;; Some end in a colon of their own.
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
               ('nobody "closed, and nobody has answered")
               (_ (if label
                      (format "closed with \"%s\"" (qwen-companion-untrusted-text label t))
                    "closed; the answer is not known here"))))
     'face 'shadow)))

;;; In the conversation

(defvar qwen-companion-chat-permissions-map
  (let ((map (make-sparse-keymap)))
    (set-keymap-parent map qwen-companion-chat-conversation-map)
    (define-key map (kbd "RET") #'qwen-companion-chat-permissions-choose)
    (define-key map [mouse-2] #'qwen-companion-chat-permissions-choose-clicked)
    (define-key map [follow-link] 'mouse-face)
    map)
  "Keys on what waits for the user.")

(defun qwen-companion-chat-permissions--draw (item)
  "Show ITEM in the conversation as it is now."
  (let ((tool (qwen-companion-chat-permissions--tool item)))
    (qwen-companion-chat-permissions--put
     (qwen-companion-chat-permissions--item-report item)
     (propertize (qwen-companion-chat-permissions--text
                  item tool (eq item (car qwen-companion-chat-permissions--items)))
                 'qwen-companion-chat-permission (qwen-companion-chat-permissions--id item)
                 'keymap qwen-companion-chat-permissions-map))))

(defun qwen-companion-chat-permissions--put (report text)
  "Put TEXT about the permission of REPORT where its tool has been told."
  (qwen-companion-chat-blocks-add
   (list :turn (qwen-companion-daemon-permission-turn report)
         :parent (qwen-companion-daemon-tool-parent
                  (qwen-companion-chat-tools-get
                   (qwen-companion-daemon-permission-tool report))))
   (list 'permission (qwen-companion-daemon-permission-permission report))
   text))

(defun qwen-companion-chat-permissions--settle-front ()
  "Give the keys to the oldest that waits, if they are another's."
  (when-let* ((front (car qwen-companion-chat-permissions--items)))
    (unless (qwen-companion-chat-permissions--item-since front)
      (setf (qwen-companion-chat-permissions--item-since front) (float-time))
      (qwen-companion-chat-permissions--draw front))))

(defun qwen-companion-chat-permissions--tool (item)
  "Return the plist of the tool that ITEM is about, or nil."
  (when-let* ((tool (qwen-companion-daemon-permission-tool
                     (qwen-companion-chat-permissions--item-report item))))
    (qwen-companion-chat-tools-get tool)))

(defun qwen-companion-chat-permissions-on-permission (report)
  "Use REPORT of a permission or a form in the current chat."
  (let* ((id (qwen-companion-daemon-permission-permission report))
         (item (qwen-companion-chat-permissions--find id)))
    (cond
     ((eq 'closed (qwen-companion-daemon-permission-state report))
      (when item
        (qwen-companion-chat-permissions--close item report)))
     (item
      (setf (qwen-companion-chat-permissions--item-report item) report
            ;; What was under way is decided: it was lost.
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
      (qwen-companion-chat-permissions--fetch-changes item)))
    (qwen-companion-chat-permissions--settle-front))
  (qwen-companion-chat-permissions--note-chat)
  nil)

(defun qwen-companion-chat-permissions-on-tool (tool)
  "Use what is told of TOOL, if something in the current chat is about it.
What it would do may be another thing than before: then that has to be
shown, and read, anew."
  (dolist (item qwen-companion-chat-permissions--items)
    (when (and (equal (qwen-companion-daemon-tool-id tool)
                      (qwen-companion-daemon-permission-tool
                       (qwen-companion-chat-permissions--item-report item)))
               (not (eql (qwen-companion-daemon-tool-revision tool)
                         (qwen-companion-chat-permissions--item-revision item))))
      (when (qwen-companion-chat-permissions--item-since item)
        (setf (qwen-companion-chat-permissions--item-since item) (float-time)))
      (qwen-companion-chat-permissions--fetch-changes item))))

(defun qwen-companion-chat-permissions--close (item report)
  "Show that ITEM is closed, according to REPORT."
  (setq qwen-companion-chat-permissions--items
        (delq item qwen-companion-chat-permissions--items))
  (qwen-companion-chat-permissions--put
   report (qwen-companion-chat-permissions--closed-text report)))

(defun qwen-companion-chat-permissions-redraw ()
  "Show what waits anew, after the state of the session has changed."
  (mapc #'qwen-companion-chat-permissions--draw qwen-companion-chat-permissions--items))

(defun qwen-companion-chat-permissions-forget ()
  "Forget all that waits: the conversation is told anew, or has ended."
  (setq qwen-companion-chat-permissions--items nil)
  (qwen-companion-chat-permissions--note-chat))

;;; What is to be seen before

(defun qwen-companion-chat-permissions--fetch-changes (item)
  "Show ITEM, and get what it would do to files, to be shown as well."
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
         (when (and (memq item qwen-companion-chat-permissions--items)
                    (eql revision (qwen-companion-chat-permissions--item-revision item)))
           (setf (alist-get (qwen-companion-daemon-diff-index diff)
                            (qwen-companion-chat-permissions--item-diffs item))
                 lines)
           (qwen-companion-chat-permissions--draw item)))))))

(defun qwen-companion-chat-permissions--unseen (item)
  "Return why ITEM cannot be allowed yet, or nil.
All that the user is asked to allow has to be shown before."
  (unless (qwen-companion-chat-permissions--item-seen item)
    (let ((tool (qwen-companion-chat-permissions--tool item)))
      (cond
       ((qwen-companion-daemon-permission-questions
         (qwen-companion-chat-permissions--item-report item))
        nil)
       ((cdr (qwen-companion-chat-permissions--given tool))
        "what the tool is given is cut here")
       ((cl-notevery
         (lambda (diff)
           (stringp (alist-get (qwen-companion-daemon-diff-index diff)
                               (qwen-companion-chat-permissions--item-diffs item))))
         (qwen-companion-daemon-tool-diffs tool))
        "the change is not shown here")))))

(defun qwen-companion-chat-show-change ()
  "Show all that the question at point, else the oldest, is about.
That is what the tool is given, or how it would change files; the latter
in the front end that `qwen-companion-diff-style' names."
  (interactive nil qwen-companion-chat-mode)
  (let* ((item (qwen-companion-chat-permissions--here))
         (tool (qwen-companion-chat-permissions--tool item)))
    (unless (or (qwen-companion-daemon-tool-diffs tool)
                (qwen-companion-chat-permissions--given tool))
      (user-error "There is nothing more to show"))
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
      (if (qwen-companion-chat-permissions--given tool)
          (qwen-companion-chat-tools-show-whole
           (qwen-companion-daemon-tool-id tool) 'input
           (or (qwen-companion-chat-tools-title tool) "a tool") show-diffs)
        (funcall show-diffs t)))))

;;; Answering

(defun qwen-companion-chat-permissions--here ()
  "Return what the question at point, else the oldest of this chat, is.
Signal a `user-error' when there is none."
  (or (qwen-companion-chat-permissions--find
       (get-text-property (point) 'qwen-companion-chat-permission))
      (car qwen-companion-chat-permissions--items)
      (user-error "Nothing waits for an answer in this chat")))

(defun qwen-companion-chat-permissions--check (item)
  "Refuse, with the reason, when ITEM cannot be answered now."
  (cond
   ((qwen-companion-chat-permissions--held-p item)
    (user-error "The connection to the daemon is lost; this is checked again after reconnecting"))
   ((qwen-companion-chat-permissions--item-sent item)
    (user-error "Your answer is being sent"))
   ((not (eq item (car qwen-companion-chat-permissions--items)))
    (user-error "An older question waits; answer that first"))
   ((let ((age (- (float-time)
                  (qwen-companion-chat-permissions--item-since item))))
      ;; Less than nothing when the clock was set back.
      (and (<= 0 age) (< age qwen-companion-chat-permissions--settle)))
    (user-error "This question has only just come up; read it before you answer"))))

(defun qwen-companion-chat-permissions--answer (item option)
  "Answer ITEM with OPTION, a plist; nil dismisses it."
  (qwen-companion-chat-permissions--check item)
  (let ((questions (qwen-companion-daemon-permission-questions
                    (qwen-companion-chat-permissions--item-report item)))
        (answers (qwen-companion-chat-permissions--item-answers item))
        (allows (qwen-companion-daemon-option-allows option)))
    (when allows
      (when (qwen-companion-daemon-tool-diffs-more (qwen-companion-chat-permissions--tool item))
        (user-error "Some of the changes cannot be shown here; this can only be rejected"))
      (when-let* ((reason (qwen-companion-chat-permissions--unseen item)))
        (user-error "Not allowed yet: %s; %s shows it" reason
                    (substitute-command-keys
                     "\\<qwen-companion-chat-mode-map>\\[qwen-companion-chat-show-change]")))
      (qwen-companion-chat-permissions--form-check answers))
    (setf (qwen-companion-chat-permissions--item-sent item) t
          (qwen-companion-chat-permissions--item-problem item) nil)
    (qwen-companion-chat-permissions--draw item)
    (qwen-companion-chat-call
     'daemon-answer
     (list :session qwen-companion-chat-session-id
           :permission (qwen-companion-chat-permissions--id item)
           :option (qwen-companion-daemon-option-id option)
           :revision (qwen-companion-chat-permissions--item-revision item)
           :answers (and allows questions
                         (mapcar (lambda (choices) (list :choices choices)) answers)))
     (lambda (reply)
       (when (and (qwen-companion-daemon-reply-error reply)
                  (memq item qwen-companion-chat-permissions--items))
         (setf (qwen-companion-chat-permissions--item-sent item) nil
               (qwen-companion-chat-permissions--item-problem item)
               (concat "Your answer was not accepted: " (qwen-companion-daemon-reply-error reply)))
         (qwen-companion-chat-permissions--draw item))))))

(defun qwen-companion-chat-permissions--answer-number (item number)
  "Answer ITEM with the option that has NUMBER; 0 dismisses it."
  (let ((options (qwen-companion-daemon-permission-options
                  (qwen-companion-chat-permissions--item-report item))))
    (when (> number (length options))
      (user-error "There is no option %d" number))
    (qwen-companion-chat-permissions--answer
     item (and (> number 0) (nth (1- number) options)))))

(defun qwen-companion-chat-permissions--read (item)
  "Let the user choose one of the options of ITEM; return its number."
  (let* ((report (qwen-companion-chat-permissions--item-report item))
         (choices (append
                   (cl-loop for option in (qwen-companion-daemon-permission-options report)
                            for number from 1
                            collect (cons (substring-no-properties
                                           (format "%d %s%s" number
                                                   (qwen-companion-daemon-option-label option)
                                                   (qwen-companion-chat-permissions--writes
                                                    option)))
                                          number))
                   '(("0 dismiss without an answer" . 0)))))
    (alist-get (completing-read
                (format "%s: " (qwen-companion-untrusted-line
                                (or (qwen-companion-daemon-permission-title report)
                                    "Answer")))
                choices nil t)
               choices nil nil #'equal)))

;;;###autoload
(defun qwen-companion-chat-answer (&optional number)
  "Answer what a tool in this chat waits for.
It is the oldest question.  NUMBER, the prefix argument, is that of the
option, and 0 dismisses the question; without one, ask for it.  Outside
of a chat, go to the question that has waited for longest."
  (interactive
   (list (cond ((not (derived-mode-p 'qwen-companion-chat-mode)) nil)
               (current-prefix-arg (prefix-numeric-value current-prefix-arg))
               (t (let ((item (qwen-companion-chat-permissions--here)))
                    (qwen-companion-chat-permissions--check item)
                    (qwen-companion-chat-permissions--read item))))))
  (if (derived-mode-p 'qwen-companion-chat-mode)
      (qwen-companion-chat-permissions--answer-number
       (qwen-companion-chat-permissions--here) number)
    (qwen-companion-chat-permissions-go)))

(defun qwen-companion-chat-answer-with-key ()
  "Answer the oldest question of this chat with the option of the key typed."
  (interactive nil qwen-companion-chat-mode)
  (qwen-companion-chat-permissions--answer-number
   (or (car qwen-companion-chat-permissions--items)
       (user-error "Nothing waits for an answer in this chat"))
   (- (event-basic-type last-command-event) ?0)))

(defun qwen-companion-chat-permissions-choose ()
  "Choose the option or the answer on this line."
  (interactive nil qwen-companion-chat-mode)
  (let ((item (qwen-companion-chat-permissions--here)))
    (if-let* ((number (get-text-property (point) 'qwen-companion-chat-option)))
        (qwen-companion-chat-permissions--answer-number item number)
      (pcase (get-text-property (point) 'qwen-companion-chat-choice)
        (`(,number . ,answer)
         (qwen-companion-chat-permissions--choose item number answer))
        (_ (qwen-companion-chat-permissions--check item)
           (user-error "There is nothing to choose on this line"))))))

(defun qwen-companion-chat-permissions-choose-clicked (event)
  "Choose the option or the answer that was clicked with EVENT."
  (interactive "e" qwen-companion-chat-mode)
  (mouse-set-point event)
  (qwen-companion-chat-permissions-choose))

(defun qwen-companion-chat-permissions--choose (item number answer)
  "Choose ANSWER to the question NUMBER, from 0, of ITEM; nil asks for one."
  (let ((question (nth number (qwen-companion-daemon-permission-questions
                               (qwen-companion-chat-permissions--item-report item))))
        (chosen (nth number (qwen-companion-chat-permissions--item-answers item))))
    (setf (nth number (qwen-companion-chat-permissions--item-answers item))
          (qwen-companion-chat-permissions--form-choose question chosen answer))
    (qwen-companion-chat-permissions--draw item)))

;;; Elsewhere

(defvar qwen-companion-chat-permissions--chats nil
  "The chats in which something waits, the longest waiting first.")

(defun qwen-companion-chat-permissions--note-chat ()
  "Note whether something waits in the current chat."
  (if (not qwen-companion-chat-permissions--items)
      (setq qwen-companion-chat-permissions--chats
            (delq (current-buffer) qwen-companion-chat-permissions--chats))
    (unless (memq (current-buffer) qwen-companion-chat-permissions--chats)
      (setq qwen-companion-chat-permissions--chats
            (append qwen-companion-chat-permissions--chats (list (current-buffer))))))
  (force-mode-line-update t))

(defun qwen-companion-chat-permissions--waiting ()
  "Return the chats in which something waits, the longest waiting first."
  (setq qwen-companion-chat-permissions--chats
        (cl-delete-if-not #'buffer-live-p qwen-companion-chat-permissions--chats)))

(defun qwen-companion-chat-permissions-lighter ()
  "Return the part of the mode line about what waits, \"\" for nothing."
  (let ((count (cl-loop for chat in (qwen-companion-chat-permissions--waiting)
                        sum (length (buffer-local-value
                                     'qwen-companion-chat-permissions--items chat)))))
    (if (zerop count)
        ""
      (propertize (format " Asks:%d" count)
                  'face 'warning
                  'help-echo "A tool waits for your answer; M-x qwen-companion-chat-answer goes there"))))

(defun qwen-companion-chat-permissions-go ()
  "Go to the chat in which something has waited for longest, and to that."
  (let* ((chat (or (car (qwen-companion-chat-permissions--waiting))
                   (user-error "Nothing waits for an answer in any chat")))
         (id (qwen-companion-chat-permissions--id
              (car (buffer-local-value 'qwen-companion-chat-permissions--items chat)))))
    (pop-to-buffer chat)
    (goto-char (point-min))
    (when-let* ((match (text-property-search-forward
                        'qwen-companion-chat-permission id t)))
      (goto-char (prop-match-beginning match)))))

;;; Forms

(defun qwen-companion-chat-permissions--form-labels (question)
  "Return the answers to QUESTION that can be chosen."
  (mapcar #'qwen-companion-daemon-answer-label
          (qwen-companion-daemon-question-choices question)))

(defun qwen-companion-chat-permissions--form-own-answers (question chosen)
  "Return those of CHOSEN that QUESTION does not offer: the user's own."
  (cl-set-difference chosen (qwen-companion-chat-permissions--form-labels question)
                     :test #'equal))

;;; How it looks

(defun qwen-companion-chat-permissions--form-text (questions answers active)
  "Return the text of QUESTIONS with their ANSWERS.
With ACTIVE non-nil, each answer has the property
`qwen-companion-chat-choice': the number of the question and what is
chosen by it, nil for an answer of the user's own."
  (let ((number -1))
    (mapconcat (lambda (question)
                 (cl-incf number)
                 (qwen-companion-chat-permissions--form-question
                  number question (nth number answers) active))
               questions "")))

(defun qwen-companion-chat-permissions--form-question (number question chosen active)
  "Return the text of QUESTION with NUMBER, of whose answers some are CHOSEN.
ACTIVE is as for `qwen-companion-chat-permissions--form-text'."
  (let* ((multiple (qwen-companion-daemon-question-multiple question))
         (own (qwen-companion-chat-permissions--form-own-answers question chosen))
         (line (lambda (answer on text)
                 (let ((line (concat "    " (qwen-companion-chat-permissions--form-mark multiple on)
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

(defun qwen-companion-chat-permissions--form-mark (multiple on)
  "Return the mark of an answer that is chosen if ON, of MULTIPLE or of one."
  (cond ((and multiple on) "[x]")
        (multiple "[ ]")
        (on "(x)")
        (t "( )")))

;;; What becomes of it

(defun qwen-companion-chat-permissions--form-choose (question chosen answer)
  "Return what is chosen of QUESTION, after CHOSEN, when ANSWER is chosen too.
With ANSWER nil, the user is asked for one."
  (let* ((own (qwen-companion-chat-permissions--form-own-answers question chosen))
         (added (cond (answer (list answer))
                      ((let ((text (string-trim (read-string "Your answer: " (car own)))))
                         (and (not (string-empty-p text)) (list text)))))))
    (cond ((not (qwen-companion-daemon-question-multiple question)) added)
          ((not answer) (append (cl-set-difference chosen own :test #'equal) added))
          ((member answer chosen) (remove answer chosen))
          (t (append chosen added)))))

(defun qwen-companion-chat-permissions--form-check (answers)
  "Refuse ANSWERS of which one is missing."
  (when-let* ((open (cl-position nil answers)))
    (user-error "Question %d has no answer yet; choose one with RET" (1+ open))))

(provide 'qwen-companion-chat-permissions)
;;; qwen-companion-chat-permissions.el ends here
